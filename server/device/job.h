// SPDX-License-Identifier: Apache-2.0
//
// Jobs of a device and their outcomes, as plain data, and blocks of device memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/per_operand.h"
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/recompute_task.h"
#include "server/device/held_bytes.h"

namespace gemmd {

// The number of a range of memory of one device. Never 0, and never reused, not even after a loss.
using DeviceBlock = uint64_t;

// Memory of a device that outlives jobs: blocks, which hold tensors. Jobs name blocks as places of
// their matrices. Operations on a block, including jobs, run in the order of the calls; other
// operations in any order. So a job may be submitted right after the Write of its operand, and a
// block freed right after the submission of a job that reads it. Each `done` is called exactly
// once, from a thread of the device, never from within the call, and never under a lock held during
// the call. It must not block. Errors of all calls, passed to `done`: FailedPrecondition, "tensor
// lost: ...", for a block of an earlier generation; InvalidArgument for an unknown or freed block,
// or a range outside of it; Unavailable if the device is not ready; DeadlineExceeded and Internal
// if it fails.
//
// Threads: any.
class DeviceMemory {
 public:
  using AllocateDone = absl::AnyInvocable<void(absl::StatusOr<DeviceBlock>) &&>;
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  virtual ~DeviceMemory() = default;

  // The limit on the bytes of all blocks (four fifths of --gpu-memory-bytes). A block takes its
  // size rounded up to a multiple of kBlockGranuleBytes. Constant once the device has started.
  virtual int64_t capacity_bytes() const = 0;
  // The bytes that blocks take now.
  virtual int64_t used_bytes() const = 0;

  // Allocates a zeroed block, aligned to 256 bytes; its bytes are counted from the call on. Errors:
  // InvalidArgument if `bytes` is not positive; ResourceExhausted beyond the capacity, or if the
  // GPU has no memory left.
  virtual void Allocate(int64_t bytes, AllocateDone done) = 0;

  // Frees the block; no effect on a lost one.
  virtual void Free(DeviceBlock block) = 0;

  // Copies the consecutive pieces to `offset` of the block. Borrows them until `done`. On failure,
  // the range is undefined.
  virtual void Write(DeviceBlock block, int64_t offset,
                     std::vector<absl::Span<const std::byte>> pieces, Done done) = 0;

  // Copies out of the block. Borrows `to` until `done`.
  virtual void Read(DeviceBlock block, int64_t offset, absl::Span<std::byte> to, Done done) = 0;

  // Compresses some lines of a block into another block, and returns the first group in which a
  // mask marks too many units, or kNoBadGroup.
  using CompressDone = absl::AnyInvocable<void(absl::StatusOr<BadGroup>) &&>;
  virtual void Compress(const CompressTask& task, CompressDone done) = 0;

  // Elements of a D to be computed again. `task.places` names the blocks.
  struct Recomputation {
    RecomputeTask task;
    const Kernel* kernel = nullptr;  // Computes the product of the rows and columns.
    int64_t predicted_ns = 0;
    std::vector<int64_t> numbers;  // Of the rows, then of the columns.
    // The operands that are not in blocks, gathered (kernels/verify/sub_product.h).
    PerOperand<std::vector<std::byte>> operands;
  };
  // The elements, row major, without gaps, matrix by matrix.
  struct Recomputed {
    std::vector<std::byte> computed;
    std::vector<std::byte> found;  // In D; empty if D is not in a block.
  };
  using RecomputeDone = absl::AnyInvocable<void(absl::StatusOr<Recomputed>) &&>;
  virtual void Recompute(Recomputation order, RecomputeDone done) = 0;

  // Incremented whenever all blocks are lost because the worker is replaced: before the first
  // `done` or job's end that reports it, and before the device is ready again.
  virtual uint64_t generation() const = 0;
};

inline constexpr int64_t kBlockGranuleBytes = 256;

// The capacity that a block of `bytes` bytes takes. `bytes` is at most 2^63 - 256.
constexpr int64_t BlockBytes(int64_t bytes) {
  return (bytes + kBlockGranuleBytes - 1) / kBlockGranuleBytes * kBlockGranuleBytes;
}

// The submitter's number for a job, ascending from 1; 0 for a job that is never aborted.
using JobId = uint64_t;

// The resident tensors of a job, which may have to be brought to its device (server/store).
class ProductTensors;

using Piece = absl::Span<const std::byte>;
inline Piece PieceOf(std::string_view bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}
inline Piece PieceOf(absl::Span<const float> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
}

// Removes `bytes` bytes, or all if there are fewer, from the front of the pieces, and returns them.
std::vector<Piece> TakeFront(std::vector<Piece>& pieces, int64_t bytes);

// Most matrices have one piece, which needs no allocation.
using PieceList = absl::InlinedVector<Piece, 1>;

// The owner of a source's pieces.
class PieceKeeper {
 public:
  virtual ~PieceKeeper() = default;
  // `count` pieces from `first` on have been copied and are no longer needed. Called at most once
  // for each piece. Threads: any.
  virtual void Release(size_t first, size_t count) = 0;
};

// The location of a matrix that a job reads: in host memory, in consecutive pieces, or in a block
// of the device.
struct Source {
  absl::Span<const Piece> pieces;  // None is empty. Borrowed until the job is done.
  PieceKeeper* keeper =
      nullptr;  // If not null, may be notified of pieces that are no longer needed.
  DeviceBlock block =
      0;  // If not 0: in this block, from `offset` on; only for devices with their own memory.
  int64_t offset = 0;
  // If not empty: in these consecutive parts instead. Only for A, B and C; borrowed likewise.
  absl::Span<const PlacedPart> parts = {};
  int64_t bytes =
      0;  // Size of all pieces or parts, or of the used part of the block. 0: no such matrix.
  // The bytes belong to a tensor, and may be on a device: they are brought to the job's device
  // first (server/store).
  bool is_resident = false;
};

// Keeps data that kernels derive from resident operands (Kernel::derived) between jobs.
class FormKeeper {
 public:
  virtual ~FormKeeper() = default;
  // Memory for the data that the job derives from a source of `matrices` with this layout; valid
  // until EndForms. Without memory, the data is not kept. Call at most once for A and once for B.
  // Threads: the device's.
  virtual OperandForm TakeForm(const Source& source, const MatrixLayout& layout, int64_t matrices,
                               const DerivedOperand& derived) = 0;
  // Call after the launch; if `is_ok`, the forms were made. Threads: as TakeForm.
  virtual void EndForms(bool is_ok) = 0;
};

// The pieces of one job's matrices, for as long as the job needs them. Not movable: sources point
// into it.
class SourcePieces {
 public:
  SourcePieces() = default;
  SourcePieces(const SourcePieces&) = delete;
  SourcePieces& operator=(const SourcePieces&) = delete;

  // Adds a source of host memory, which must outlive this object. At most kMax times.
  Source Add(Piece whole) { return Add(PieceList(whole.empty() ? 0 : 1, whole)); }
  Source Add(PieceList pieces, PieceKeeper* keeper = nullptr);

  static constexpr size_t kMax = kOperandRoles.size();

 private:
  std::array<PieceList, kMax> lists_;
  size_t used_ = 0;
};

// The destination of a part of D: a block of the device or host memory. If both are 0, the part is
// discarded.
struct DestinationPart {
  DeviceBlock block = 0;
  int64_t offset = 0;
  std::byte* memory = nullptr;  // Borrowed until the job is done.
  int64_t bytes = 0;
};

// The destination of D: a block of the device, host memory or, if both are 0, memory that the
// device returns with the outcome.
struct Destination {
  DeviceBlock block = 0;
  int64_t offset = 0;
  std::byte* memory = nullptr;  // d_bytes of them, borrowed until the job is done.
  // If not 0: the line stride in `memory`, instead of that of the problem's layout; d_bytes is then
  // ignored. Only for panels (large_job.h).
  int64_t line_stride_bytes = 0;

  int64_t line_stride(const MatrixLayout& d) const {
    return line_stride_bytes != 0 ? line_stride_bytes : d.line_stride_bytes();
  }
  // If not empty: D, without padding, goes to these parts instead, either all in blocks or none.
  // Borrowed likewise; the parts do not overlap.
  absl::Span<const DestinationPart> parts = {};
  bool is_new = false;  // A new tensor, which cannot be found before the job is done.

  // Whether D has a destination and is not returned with the outcome.
  bool is_given() const { return block != 0 || memory != nullptr || !parts.empty(); }
};

// How several jobs run as one (JoinedJob).
enum class Joining : uint8_t { kStacked, kBatched };

// One launch. Everything is borrowed until the job is done; operands are as in GemmArgs. Padding
// between the lines of D is zero in memory that the device returns, and unchanged elsewhere.
struct Job : PerOperand<Source> {
  JobId id = 0;
  Problem problem;
  const Kernel* kernel = nullptr;
  bool keeps_kernel = false;  // If false, a joined job may use another kernel with the same bits.
  bool may_vary = false;      // Joining may change D's bits (MayVaryJoined).
  int64_t workspace_bytes = 0;
  PredictedTime predicted;  // For panels, watchdogs and spinning; 0: short.
  int64_t d_bytes = 0;
  Destination d;
  ProductTensors* tensors = nullptr;  // Borrowed until the job is done. Null: none.
  FormKeeper* forms = nullptr;        // Likewise.
  FormPlace a_form;                   // Only for devices with their own memory.
  FormPlace b_form;
  // If not empty: the jobs that run as this one. Borrowed until it is done.
  absl::Span<const Job* const> members = {};
  Joining joining = Joining::kStacked;  // How members are joined.
};

// How a job ended, and how long each stage on the device took, in nanoseconds.
struct JobOutcome {
  absl::Status status;
  int64_t wait_ns = 0;  // From Submit to the start on the device's thread.
  int64_t copy_in_ns = 0;
  int64_t compute_ns = 0;
  int64_t copy_out_ns = 0;
  HeldBytes d = {};                // D, if the device returns the memory and the status is OK.
  const Kernel* kernel = nullptr;  // The kernel that ran, if not the job's own.
  bool made_forms = false;         // The forms of A and B were made.
  // If not empty: the outcome of each member, if they differ.
  std::vector<JobOutcome> members = {};
};

// Whether both are the same bytes in the same place.
bool IsSamePlace(const Source& x, const Source& y);

// A copy of a member's part of the joint D, so that a caller that reads its answer slowly does not
// hold others' memory. Errors: ResourceExhausted if there is no memory.
absl::StatusOr<HeldBytes> CopyOfPart(absl::Span<const std::byte> part);

// Several jobs as one.
//
//   Batched: jobs of one shape, kernel and epilogue become one batch of matrices.
//   Stacked: jobs with the same resident B become one job whose A has the rows of all.
//
// Every D has the same bits as it would have alone, unless its job may vary: other jobs are joined
// only with kernels whose rows depend neither on m nor on the batch. All operands are read before
// any D is written. Borrows what its members borrow.
class JoinedJob {
 public:
  // Joins at least one job under the number `id`; all have the same key of this kind
  // (server/product/scheduler.h), and distinct parts of D do not overlap. The whole has no operands
  // before Gather. Errors: Unimplemented if the kernel does not support the whole;
  // ResourceExhausted if its workspace would be too large.
  static absl::StatusOr<std::unique_ptr<JoinedJob>> Of(Joining joining, JobId id,
                                                       std::vector<const Job*> members);
  // Rebuilds the whole from jobs whose matrices have moved.
  static std::unique_ptr<JoinedJob> Of(const Job& whole, std::vector<const Job*> members);

  // Assembles the members' operands and parts of D, which completes the whole. If members name
  // tensors, their places must be known. Errors: Unimplemented if matrices of one operand are
  // partly on the host and partly on the device.
  absl::Status Gather();

  // Valid during the lifetime of this object.
  const Job& job() const { return job_; }

  // Replaces the kernel of the whole by another one with the same bits. Errors: those of Of;
  // nothing is changed then.
  absl::Status SetKernel(const Kernel& kernel);
  void SetPredicted(const PredictedTime& predicted) { job_.predicted = predicted; }

 private:
  explicit JoinedJob(std::vector<const Job*> members) : members_(std::move(members)) {}
  absl::Status Join();
  void Stack();
  void Batch();
  void ShareIfOne(OperandRole role);
  bool IsOne(OperandRole role) const;
  absl::Status Concatenate(OperandRole role);
  void Scatter();

  const std::vector<const Job*> members_;
  SourcePieces pieces_;
  std::vector<std::vector<PlacedPart>> block_parts_;  // Places of operands in blocks.
  std::vector<DestinationPart> d_parts_;
  Job job_;
};

}  // namespace gemmd
