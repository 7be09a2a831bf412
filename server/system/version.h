// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gemmd {

// The version that the top CMakeLists.txt gives the project.
inline constexpr char kVersion[] = GEMMD_VERSION;

}  // namespace gemmd
