// SPDX-License-Identifier: Apache-2.0
//
// Memory of the daemon that the workers of the host's devices see as well, so that they read
// resident tensors and write results where those lie. Mapped whole by the daemon and by each of the
// workers, at addresses of their own; pages are there once they are touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/crossing/staging.h"
#include "server/system/mutex.h"

namespace gemmd {

// Threads: any.
class SharedMemory {
 public:
  // Shorter matrices are copied for each launch: that takes some microseconds.
  static constexpr int64_t kLeastBytes = int64_t{64} << 10;

  // Makes the memory of this process, which lasts as long as it does; no second time. As long as
  // four times the memory of the machine, which leaves room between ranges, or, where addresses are
  // limited, a quarter of those that are left.
  // `has_tensors`: whether all resident tensors lie there. Where GPUs take most of them they do
  // not: the system fills memory of a file by small pages, half as fast as a process's own. Errors:
  // ResourceExhausted.
  static absl::Status OpenForProcess(bool has_tensors);
  // Null where it was not opened.
  static SharedMemory* OfProcess();

  // Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(int64_t bytes);

  // Takes a range of zeros that begins at a page; null where there is no room.
  std::byte* Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the range and its pages back.
  void GiveBack(std::byte* memory, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives back the pages of a range that stays taken; it reads as zeros again.
  bool Clear(std::byte* memory, int64_t bytes) const;

  bool has_tensors() const { return has_tensors_; }

  // Where the address lies in the file; nothing for an address of other memory.
  std::optional<int64_t> OffsetOf(const std::byte* memory) const;

  int descriptor() const { return staging_.descriptor(); }

 private:
  explicit SharedMemory(Staging staging);

  const Staging staging_;
  bool has_tensors_ = true;
  Mutex mutex_;
  FreeRanges ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
