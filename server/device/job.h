// SPDX-License-Identifier: Apache-2.0
//
// What a device is given to do and what comes of it: jobs, as plain data, and blocks of its memory.
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
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/per_operand.h"
#include "server/device/held_bytes.h"

namespace gemmd {

// A range of memory of one device. Never 0, and never given again, not even after a loss.
using DeviceBlock = uint64_t;

// Memory of a device that outlives jobs: blocks, in which tensors stay. Jobs name blocks as places
// of their matrices.
//
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

// What a device is given to do and what comes of it: plain data.

// The submitter's number for a job, ascending from 1; 0 for a job that is never aborted.
using JobId = uint64_t;

// The resident tensors that a job reads, which may have to be brought to its device (server/store).
class ProductTensors;

using Piece = absl::Span<const std::byte>;
inline Piece PieceOf(std::string_view bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}
inline Piece PieceOf(absl::Span<const float> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
}

// Most matrices lie in one piece, for which nothing is allocated.
using PieceList = absl::InlinedVector<Piece, 1>;

// Who keeps the pieces of a source.
class PieceKeeper {
 public:
  virtual ~PieceKeeper() = default;
  // So many pieces, from `first` on, have been copied and are not looked at again. Called at most
  // once for each piece. Threads: any.
  virtual void LetGo(size_t first, size_t count) = 0;
};

// Where a matrix that a job reads lies: in memory of the host, in pieces that follow each other, or
// in a block of the device's.
struct Source {
  absl::Span<const Piece> pieces;  // None is empty. Borrowed until the job is done.
  PieceKeeper* keeper = nullptr;   // Not null: may be told of pieces that are no longer needed.
  DeviceBlock block = 0;  // Not 0: there, from `offset` on; devices with memory of their own only.
  int64_t offset = 0;
  // Not empty: there instead, one part after the other. For A, B and C alone; borrowed likewise.
  absl::Span<const PlacedPart> parts = {};
  int64_t bytes = 0;  // All pieces or parts, or what is used of the block. 0: no such matrix.
  // The bytes are a tensor's, and may be on a device: they come to wherever the job is run before
  // that (server/store).
  bool is_resident = false;
};

// Keeps what kernels derive from operands that stay (Kernel::derived), from one job to the next.
class FormKeeper {
 public:
  virtual ~FormKeeper() = default;
  // Memory for what the job derives from the matrix of a source, whose layout is `layout`; valid
  // until EndForms. No memory: it is not kept. At most once for A and once for B. Threads: the
  // device's.
  virtual OperandForm TakeForm(const Source& source, const MatrixLayout& layout,
                               const DerivedOperand& derived) = 0;
  // The launch is over, and what it was to make is made where it is OK. Threads: as TakeForm.
  virtual void EndForms(bool is_ok) = 0;
};

// The pieces of the matrices of one job, for as long as the job needs them. Not moved: sources
// point into it.
class SourcePieces {
 public:
  SourcePieces() = default;
  SourcePieces(const SourcePieces&) = delete;
  SourcePieces& operator=(const SourcePieces&) = delete;

  // A source of host memory, which is borrowed for longer than this lives. At most kMax times.
  Source Add(Piece whole) { return Add(PieceList(whole.empty() ? 0 : 1, whole)); }
  Source Add(PieceList pieces, PieceKeeper* keeper = nullptr);

  static constexpr size_t kMax = kOperandRoles.size();

 private:
  std::array<PieceList, kMax> lists_;
  size_t used_ = 0;
};

// Where a part of D goes: into a block of the device's or into memory of the host. Where both are
// 0, nobody wants it.
struct DestinationPart {
  DeviceBlock block = 0;
  int64_t offset = 0;
  std::byte* memory = nullptr;  // Borrowed until the job is done.
  int64_t bytes = 0;
};

// Where D goes: into a block of the device's, into memory of the host, or, where both are 0, into
// memory that the device gives with the outcome.
struct Destination {
  DeviceBlock block = 0;
  int64_t offset = 0;
  std::byte* memory = nullptr;  // d_bytes of them, borrowed until the job is done.
  // Not 0: in `memory` lines begin every so many bytes, whatever the problem's layout says of D,
  // and d_bytes do not count. Of panels alone (large_job.h).
  int64_t line_stride_bytes = 0;

  int64_t line_stride(const MatrixLayout& d) const {
    return line_stride_bytes != 0 ? line_stride_bytes : d.line_stride_bytes();
  }
  // Not empty: D, which has no padding then, goes there instead, one part after the other, all of
  // them in blocks or none. They are borrowed likewise, and share no byte.
  absl::Span<const DestinationPart> parts = {};
  bool is_new = false;  // A tensor that nobody can find before the job is done.

  // Whether D does not come with the outcome.
  bool is_given() const { return block != 0 || memory != nullptr || !parts.empty(); }
};

// How several jobs run as one (JoinedJob).
enum class Joining : uint8_t { kStacked, kBatched };

// One launch. Everything is borrowed until the job is done; operands are as GemmArgs says.
//
// Padding between the lines of D is zero in memory that the device gives, and elsewhere is left
// alone.
struct Job : PerOperand<Source> {
  JobId id = 0;
  Problem problem;
  const Kernel* kernel = nullptr;
  bool keeps_kernel = false;  // Otherwise one of the same bits may run what is joined.
  bool may_vary = false;      // D may have other bits than it would have alone (MayVaryJoined).
  int64_t workspace_bytes = 0;
  PredictedTime predicted;  // For panels, watchdogs and spinning; 0: nothing long.
  int64_t d_bytes = 0;
  Destination d;
  ProductTensors* tensors = nullptr;  // Borrowed until the job is done. Null: there are none.
  FormKeeper* forms = nullptr;        // Likewise.
  FormPlace a_form;                   // Devices with memory of their own alone have any.
  FormPlace b_form;
  // Not empty: the jobs that run as this one. Borrowed until it is done.
  absl::Span<const Job* const> members = {};
  Joining joining = Joining::kStacked;  // How they do.
};

// How a job ended, and how long each stage on the device took, in nanoseconds.
struct JobOutcome {
  absl::Status status;
  int64_t wait_ns = 0;  // From Submit to the start on the device's thread.
  int64_t copy_in_ns = 0;
  int64_t compute_ns = 0;
  int64_t copy_out_ns = 0;
  HeldBytes d = {};                // D, where the device gave the memory and the status is OK.
  const Kernel* kernel = nullptr;  // What ran, where it is not the job's own.
  bool made_forms = false;         // What the job was to make of A and B is made.
  // Not empty: how each member of the job ended, where that is not the same for all.
  std::vector<JobOutcome> members = {};
};

// Whether both are the same bytes in the same place.
bool IsSamePlace(const Source& x, const Source& y);

// A member's part of the D that the device gave to all, in memory of its own: a caller that reads
// its answer slowly keeps no other's. Errors: ResourceExhausted if there is no memory.
absl::StatusOr<HeldBytes> CopyOfPart(absl::Span<const std::byte> part);

// Several jobs as one.
//
//   Batched: jobs of one shape, kernel and epilogue become one batch of matrices.
//   Stacked: jobs of one B, which stays with the device or its memory, become one job whose A has
//   the rows of them all, one below the other.
//
// The bits of every D are those that it would have alone, unless its job may vary: otherwise only
// kernels whose bits of a row depend neither on m nor on the batch join. All operands are read
// before any D is written. Borrows what its members borrow.
class JoinedJob {
 public:
  // Takes at least one job, and gives the whole this number; all have the same key of this kind
  // (server/product/scheduler.h), and parts of D that are not the same share no byte. The whole has
  // no operands before Gather. Errors: Unimplemented where the kernel does not run the whole;
  // ResourceExhausted where its workspace would be too large.
  static absl::StatusOr<std::unique_ptr<JoinedJob>> Of(Joining joining, JobId id,
                                                       std::vector<const Job*> members);
  // The whole of such jobs again, whose matrices lie elsewhere by now.
  static std::unique_ptr<JoinedJob> Of(const Job& whole, std::vector<const Job*> members);

  // Puts the members' operands and their parts of D together. Only then is the whole complete. If
  // members name tensors, the place of those has to be known before.
  // Errors: Unimplemented where matrices of one operand lie on the host and on the device.
  absl::Status Gather();

  // Lives as long as this.
  const Job& job() const { return job_; }

  // Has the whole run by another kernel, which gives the same bits. Errors: as Of; nothing is
  // changed then.
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
  std::vector<std::vector<PlacedPart>> block_parts_;  // Where operands in blocks lie.
  std::vector<DestinationPart> d_parts_;
  Job job_;
};

}  // namespace gemmd
