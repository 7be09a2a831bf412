// SPDX-License-Identifier: Apache-2.0
//
// Memory of the caller's that gRPC reads where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/slice.h"

namespace gemmd {

// Lends ranges of memory to gRPC, which lets go of them on threads of its own: later than the end
// of the call that they were for, since a transport may still write them. Each must be returned
// before the memory goes.
class LentBytes {
 public:
  LentBytes() = default;
  LentBytes(const LentBytes&) = delete;
  LentBytes& operator=(const LentBytes&) = delete;

  // Waits until all is returned. A connection that nobody reads from is given up within 30 s, and
  // what it held is returned.
  ~LentBytes();

  // The bytes, to be sent without a copy.
  grpc::Slice Lend(std::span<const std::byte> bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static void Return(void* lender);
  bool HasAll() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lent_ == 0; }

  absl::Mutex mutex_;
  int64_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
