// SPDX-License-Identifier: Apache-2.0
//
// Which blocks of a GPU's memory there are, as its front knows them, and what they take.
#pragma once

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/device_memory.h"
#include "server/system/mutex.h"

namespace gemmd {

// Threads: any.
class BlockLedger {
 public:
  // What tensors may take together. Set once.
  void SetCapacity(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t capacity_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t used_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // A new number, and its bytes, which are counted from now on but for scratch.
  // Errors: as DeviceMemory::Allocate.
  absl::StatusOr<DeviceBlock> Add(int64_t bytes, bool is_scratch) ABSL_LOCKS_EXCLUDED(mutex_);
  // False where there is no such block.
  bool Remove(DeviceBlock block) ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors: FailedPrecondition for a lost block, InvalidArgument.
  absl::Status Check(DeviceBlock block, int64_t offset, int64_t bytes) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // All of them are gone.
  void Lose() ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t generation() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Block {
    int64_t bytes = 0;
    bool is_scratch = false;
  };

  mutable Mutex mutex_;
  std::map<DeviceBlock, Block> blocks_ ABSL_GUARDED_BY(mutex_);
  int64_t capacity_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  DeviceBlock last_ ABSL_GUARDED_BY(mutex_) = 0;
  DeviceBlock last_lost_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gemmd
