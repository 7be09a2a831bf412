// SPDX-License-Identifier: Apache-2.0
//
// How many connections a transfer takes whose caller names none: as many as the client's earlier
// transfers of about as many bytes went fastest over.
#pragma once

#include <array>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gemmd {

// Sizes are told apart by powers of two. Of each, the first transfer goes over four connections if
// it has more than 8 MiB, otherwise over one; the second is the other way. From then on the faster
// way is taken, and the other one is tried again now and then, since networks change.
//
// Threads: any.
class LaneChoice {
 public:
  static constexpr int kSeveralLanes = 4;
  static constexpr int64_t kLargeBytes = int64_t{8} << 20;
  // One of so many transfers of a size goes the slower way.
  static constexpr int64_t kTransfersPerTrial = 16;

  // The connections to take: 1 or kSeveralLanes. `least_bytes`: fewer cannot be divided.
  int For(int64_t bytes, int64_t least_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // How long a transfer took that moved all of its bytes.
  void Tell(int64_t bytes, int lanes, absl::Duration took) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Size {
    int64_t transfers = 0;
    // Smoothed; 0: not known.
    double ns_per_byte_of_one = 0;
    double ns_per_byte_of_several = 0;
  };

  Size& SizeOf(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::array<Size, 65> sizes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
