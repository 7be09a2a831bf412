// SPDX-License-Identifier: Apache-2.0
#include "server/device/block_ledger.h"

#include "kernels/text.h"
#include "server/crossing/protocol.h"

namespace gemmd {

void BlockLedger::SetCapacity(int64_t bytes) {
  MutexLock lock(&mutex_);
  capacity_bytes_ = bytes;
}

int64_t BlockLedger::capacity_bytes() const {
  MutexLock lock(&mutex_);
  return capacity_bytes_;
}

int64_t BlockLedger::used_bytes() const {
  MutexLock lock(&mutex_);
  return used_bytes_;
}

absl::StatusOr<DeviceBlock> BlockLedger::Add(int64_t bytes, bool is_scratch) {
  if (bytes <= 0) return absl::InvalidArgumentError(GotWant("bytes", Concat(bytes), "1 or more"));
  MutexLock lock(&mutex_);
  const int64_t left = capacity_bytes_ - used_bytes_;
  if (!is_scratch && (bytes > left || BlockBytes(bytes) > left)) {
    return absl::ResourceExhaustedError(GotWant("device memory",
                                                Concat("a block of ", bytes, " bytes"),
                                                Concat("at most ", left, ", which are free of ",
                                                       capacity_bytes_, " (--gpu-tensor-bytes)")));
  }
  blocks_[++last_] = {.bytes = bytes, .is_scratch = is_scratch};
  if (!is_scratch) used_bytes_ += BlockBytes(bytes);
  return last_;
}

bool BlockLedger::Remove(DeviceBlock block) {
  MutexLock lock(&mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return false;
  if (!found->second.is_scratch) used_bytes_ -= BlockBytes(found->second.bytes);
  blocks_.erase(found);
  return true;
}

absl::Status BlockLedger::Check(DeviceBlock block, int64_t offset, int64_t bytes) const {
  MutexLock lock(&mutex_);
  if (block != 0 && block <= last_lost_) {
    return absl::FailedPreconditionError(
        "tensor lost: the worker that had it in the memory of its GPU was replaced");
  }
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) {
    return absl::InvalidArgumentError(GotWant("block", Concat(block), "one that is there"));
  }
  return CheckRange("block", offset, bytes, found->second.bytes);
}

void BlockLedger::Lose() {
  MutexLock lock(&mutex_);
  blocks_.clear();
  used_bytes_ = 0;
  last_lost_ = last_;
  ++generation_;
}

uint64_t BlockLedger::generation() const {
  MutexLock lock(&mutex_);
  return generation_;
}

}  // namespace gemmd
