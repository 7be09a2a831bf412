// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gemmd {

// From the build's project version.
inline constexpr char kVersion[] = GEMMD_VERSION;

}  // namespace gemmd
