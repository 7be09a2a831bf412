// SPDX-License-Identifier: Apache-2.0
//
// How many threads one launch uses.
#pragma once

#include "kernels/problem.h"

namespace gemmd {

// Restricts the calling thread's OpenMP to one thread while a product is too small to share.
class ThreadLimit {
 public:
  explicit ThreadLimit(const Problem& problem);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int restored_ = 0;  // 0: nothing was restricted.
};

}  // namespace gemmd
