// SPDX-License-Identifier: Apache-2.0
//
// The version of this build. It has no build time, so that two builds of one commit are equal.
#pragma once

#include <string>
#include <string_view>

namespace gemmd {

// The version that the top CMakeLists.txt gives the project.
inline constexpr char kVersion[] = GEMMD_VERSION;

// The commit that CMake found when it configured the build, or that was set with GEMMD_COMMIT:
// "54d0c59a2c1e", with "-dirty" if files were changed; or "unknown".
extern const char kCommit[];

// The versions of libraries that the build found: "1.51.1".
extern const char kGrpcVersion[];
extern const char kProtobufVersion[];

// The output of --version of a program of the daemon, without the last line end.
std::string VersionText(std::string_view program);

}  // namespace gemmd
