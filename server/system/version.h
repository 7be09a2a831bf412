// SPDX-License-Identifier: Apache-2.0
//
// What this build is. Nothing here tells when it was made, so that two builds of one commit are
// equal.
#pragma once

#include <string>
#include <string_view>

namespace gemmd {

// The version that the top CMakeLists.txt gives the project.
inline constexpr char kVersion[] = GEMMD_VERSION;

// The commit that CMake found when it configured the build, or that it was told (GEMMD_COMMIT):
// "54d0c59a2c1e", with "-dirty" where files were changed; or "unknown".
extern const char kCommit[];

// The libraries that the build found: "1.51.1".
extern const char kGrpcVersion[];
extern const char kProtobufVersion[];

// What --version of a program of the daemon's prints, without the last end of line.
std::string VersionText(std::string_view program);

}  // namespace gemmd
