// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device that outlives jobs: blocks, in which tensors stay. Jobs name blocks as places
// of their matrices (job.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/crossing/compress_task.h"

namespace gemmd {

// A range of memory of one device. Never 0, and never given again, not even after a loss.
using DeviceBlock = uint64_t;

// What names a block, jobs among them, is done in the order of the calls; the rest in any order. So
// a job may be submitted right after the Write of its operand, and a block freed right after the
// job that reads it was submitted: it lives until that is done.
//
// Each `done` is called exactly once, from a thread of the device's, never from the call itself and
// never under a lock of the caller's that the call was made with. It must not wait.
//
// Errors of all calls, told to `done`: FailedPrecondition, "tensor lost: ...", for a block of an
// earlier generation, InvalidArgument for one that was never there or was freed and for a range
// that is not within it, Unavailable where the device is not ready, DeadlineExceeded and Internal
// where it fails.
//
// Threads: any.
class DeviceMemory {
 public:
  using AllocateDone = absl::AnyInvocable<void(absl::StatusOr<DeviceBlock>) &&>;
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  virtual ~DeviceMemory() = default;

  // What blocks may take together (--gpu-tensor-bytes). A block takes its bytes, rounded up to a
  // multiple of kBlockGranuleBytes. Constant once the device has started.
  virtual int64_t capacity_bytes() const = 0;
  // What they take now.
  virtual int64_t used_bytes() const = 0;

  // Takes a block of zeros, aligned to 256 bytes; its bytes are counted from the call on.
  // Errors: InvalidArgument where `bytes` is not positive; ResourceExhausted beyond the capacity,
  // or where the GPU has no more.
  virtual void Allocate(int64_t bytes, AllocateDone done) = 0;

  // Gives the block back; a lost one is gone already.
  virtual void Free(DeviceBlock block) = 0;

  // Copies the pieces, one after the other, to where `offset` bytes precede them. They are borrowed
  // until `done`. Where it fails the range holds anything.
  virtual void Write(DeviceBlock block, int64_t offset,
                     std::vector<absl::Span<const std::byte>> pieces, Done done) = 0;

  // Copies out of the block. `to` is borrowed until `done`.
  virtual void Read(DeviceBlock block, int64_t offset, absl::Span<std::byte> to, Done done) = 0;

  // Compresses some lines of a block into another one, and tells the first group that a mask leaves
  // too full, or kNoBadGroup.
  using CompressDone = absl::AnyInvocable<void(absl::StatusOr<BadGroup>) &&>;
  virtual void Compress(const CompressTask& task, CompressDone done) = 0;

  // Grows whenever all blocks are lost, because the worker is replaced: before the first `done` or
  // job's end that tells so, and before the device is ready again.
  virtual uint64_t generation() const = 0;
};

inline constexpr int64_t kBlockGranuleBytes = 256;

// What a block of so many bytes takes of the capacity. The bytes are at most 2^63 - 256.
constexpr int64_t BlockBytes(int64_t bytes) {
  return (bytes + kBlockGranuleBytes - 1) / kBlockGranuleBytes * kBlockGranuleBytes;
}

}  // namespace gemmd
