// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>

#include "server/system/resources.h"

namespace gemmd {

// Limits the address space that can still be mapped, until destroyed.
class LoweredAddressSpace {
 public:
  explicit LoweredAddressSpace(int64_t left_bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    rlimit low = before_;
    low.rlim_cur = rlim_t{1} << 50;  // So that the remaining space is reported.
    EXPECT_EQ(setrlimit(RLIMIT_AS, &low), 0);
    low.rlim_cur -= static_cast<rlim_t>(AddressSpaceLeft().value_or(0) - left_bytes);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &low), 0);
  }
  ~LoweredAddressSpace() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }

  LoweredAddressSpace(const LoweredAddressSpace&) = delete;
  LoweredAddressSpace& operator=(const LoweredAddressSpace&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace gemmd
