// SPDX-License-Identifier: Apache-2.0
//
// Whether a product may wait for others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gemmd {

enum class Priority : uint8_t { kNormal, kLow };
inline constexpr size_t kPriorities = 2;

}  // namespace gemmd
