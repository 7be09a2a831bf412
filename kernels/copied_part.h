// SPDX-License-Identifier: Apache-2.0
//
// One of many ranges that are copied together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gemmd {

struct CopiedPart {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;  // 0: nothing is copied.
};

}  // namespace gemmd
