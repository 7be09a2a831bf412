// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gemmd {

inline constexpr int64_t kMs = 1'000'000;  // In nanoseconds.
inline constexpr int64_t kMebi = int64_t{1} << 20;

}  // namespace gemmd
