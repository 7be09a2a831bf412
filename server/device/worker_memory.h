// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU that outlives jobs, reached through its worker.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device/errand.h"
#include "server/device/job.h"
#include "server/system/mutex.h"

namespace gemmd {

// The front's record of the blocks in a GPU's memory, and their total size. Threads: any.
class BlockLedger {
 public:
  // The limit on tensors. Set once.
  void SetCapacity(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t capacity_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t used_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns a new number, and counts its bytes unless it is scratch. Errors: those of
  // DeviceMemory::Allocate.
  absl::StatusOr<DeviceBlock> Add(int64_t bytes, bool is_scratch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false if there is no such block.
  bool Remove(DeviceBlock block) ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors: FailedPrecondition for a lost block, InvalidArgument.
  absl::Status Check(DeviceBlock block, int64_t offset, int64_t bytes) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // All blocks are lost.
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

class WorkerMemory final : public DeviceMemory {
 public:
  // Submits errands to the worker, in order.
  using Give = std::function<void(std::vector<std::unique_ptr<Errand>>)>;

  // `chunk_bytes`: max size of a copy's chunks.
  WorkerMemory(Give give, int64_t chunk_bytes)
      : give_(std::move(give)), chunk_bytes_(chunk_bytes) {}

  int64_t capacity_bytes() const override { return ledger_.capacity_bytes(); }
  int64_t used_bytes() const override { return ledger_.used_bytes(); }
  void Allocate(int64_t bytes, AllocateDone done) override {
    AllocateAs(/*is_scratch=*/false, bytes, std::move(done));
  }
  void Free(DeviceBlock block) override;
  void Write(DeviceBlock block, int64_t offset, std::vector<absl::Span<const std::byte>> pieces,
             Done done) override;
  void Read(DeviceBlock block, int64_t offset, absl::Span<std::byte> to, Done done) override;
  void Compress(const CompressTask& task, CompressDone done) override;
  void Recompute(Recomputation order, RecomputeDone done) override;
  uint64_t generation() const override { return ledger_.generation(); }

  // A block for one product, from the memory of jobs.
  void AllocateScratch(int64_t bytes, AllocateDone done) {
    AllocateAs(/*is_scratch=*/true, bytes, std::move(done));
  }

  BlockLedger& ledger() { return ledger_; }
  const BlockLedger& ledger() const { return ledger_; }

 private:
  void AllocateAs(bool is_scratch, int64_t bytes, AllocateDone done);
  // Calls `done` from the device's thread.
  void EndWith(const absl::Status& status, Done done);
  // OK if the task's blocks exist and are large enough.
  absl::Status Check(const CompressTask& task, const CompressBytes& bytes) const;
  // OK if the block exists.
  absl::Status CheckPlace(const JobPlace& place) const;
  // Reports failures on a lost block as its loss.
  Done WithLoss(DeviceBlock block, Done done);

  const Give give_;
  const int64_t chunk_bytes_;
  BlockLedger ledger_;
};

}  // namespace gemmd
