// SPDX-License-Identifier: Apache-2.0
//
// Device memory made of host memory, with its own thread that serves the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/device/job.h"
#include "server/system/mutex.h"

namespace gemmd {

class FakeDeviceMemory final : public DeviceMemory {
 public:
  explicit FakeDeviceMemory(int64_t capacity_bytes);
  // Serves the calls that are left.
  ~FakeDeviceMemory() override;

  int64_t capacity_bytes() const override { return capacity_bytes_; }
  int64_t used_bytes() const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Allocate(int64_t bytes, AllocateDone done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Free(DeviceBlock block) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(DeviceBlock block, int64_t offset, std::vector<absl::Span<const std::byte>> pieces,
             Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Read(DeviceBlock block, int64_t offset, absl::Span<std::byte> to, Done done) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Compress(const CompressTask& task, CompressDone done) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails with Unimplemented: it has no kernels.
  void Recompute(Recomputation order, RecomputeDone done) override ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t generation() const override ABSL_LOCKS_EXCLUDED(mutex_);

  // With true, later calls wait until this is called with false. The bytes of a waiting Allocate
  // are already counted.
  void Hold(bool hold) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same from the next call of `function` on, which already waits.
  void HoldFrom(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_);
  // The number of waiting calls.
  int held() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The number of calls so far, by function name.
  int calls(const std::string& function) const ABSL_LOCKS_EXCLUDED(mutex_);

  // The next call of `function` that is served fails with the status.
  void FailNext(const std::string& function, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The next Allocate, Write or Read throws std::bad_alloc, and is not served.
  void ThrowNext() ABSL_LOCKS_EXCLUDED(mutex_);

  // As if the worker were replaced: all blocks are lost, and waiting calls fail. While the memory
  // is not ready, Allocate fails with Unavailable.
  void Lose(bool is_ready_again = true) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetReady() ABSL_LOCKS_EXCLUDED(mutex_);

  // The present contents of a block; empty if it does not exist.
  std::string bytes(DeviceBlock block) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The memory of a block, for a job that a test runs in it; null if the block does not have these
  // bytes.
  std::byte* memory(DeviceBlock block, int64_t offset, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t blocks() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Call {
    std::string function;
    DeviceBlock block = 0;
    int64_t offset = 0;
    int64_t bytes = 0;
    std::vector<absl::Span<const std::byte>> pieces;
    absl::Span<std::byte> to;
    AllocateDone allocated;
    Done done;
    CompressTask task;
    CompressDone compressed;
  };

  void Add(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Do(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<BadGroup> DoCompress(const CompressTask& task)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Check(DeviceBlock block, int64_t offset, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t capacity_bytes_;
  mutable Mutex mutex_;
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<DeviceBlock, std::vector<std::byte>> blocks_ ABSL_GUARDED_BY(mutex_);
  std::set<DeviceBlock> freed_ ABSL_GUARDED_BY(mutex_);  // Blocks whose Free is not served yet.
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  DeviceBlock last_block_ ABSL_GUARDED_BY(mutex_) = 0;
  DeviceBlock last_lost_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 1;
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  std::string held_from_ ABSL_GUARDED_BY(mutex_);  // Empty: no function is held.
  bool throws_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ready_ ABSL_GUARDED_BY(mutex_) = true;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gemmd
