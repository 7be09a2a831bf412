// SPDX-License-Identifier: Apache-2.0
//
// Allocation of a GPU's memory by its worker: an arena for jobs, blocks that outlive jobs, and the
// places of a job's matrices in both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/per_operand.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

// The GPU's memory for jobs: a few slabs, kept between jobs, in which each running job has a range.
// Their number and sizes grow to the needs of concurrent jobs.
class DeviceArena {
 public:
  struct Range {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };

  // Borrows the runtime.
  DeviceArena(GpuRuntime& runtime, int64_t limit_bytes)
      : runtime_(runtime), limit_bytes_(limit_bytes) {}
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Takes a range of `bytes` bytes, aligned to 256, uninitialized; null for 0 bytes. Errors:
  // Unavailable if there will be space once other ranges are freed; ResourceExhausted over the
  // limit, or if the GPU has no memory left.
  absl::StatusOr<Range> Reserve(int64_t bytes);
  // Frees a range that is no longer used.
  void GiveBack(const Range& range);

  // Sets the limit on all slabs. They may already exceed it.
  void SetLimit(int64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  int64_t bytes() const { return bytes_; }  // Size of all slabs.
  // Frees slabs without ranges in use.
  void FreeIdle();

 private:
  struct Slab {
    std::byte* memory = nullptr;
    FreeRanges ranges;
  };

  Slab* FindRoom(int64_t bytes);
  absl::StatusOr<Slab*> AddSlab(int64_t bytes);
  bool is_idle() const;

  GpuRuntime& runtime_;
  int64_t limit_bytes_;
  std::vector<Slab> slabs_;
  int64_t bytes_ = 0;
};

// The blocks of a GPU's memory. Lanes synchronize on their use of blocks.
class BlockTable {
 public:
  // Borrows the runtime.
  explicit BlockTable(GpuRuntime& runtime) : runtime_(runtime) {}
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // Allocates memory for a block. Errors: InvalidArgument if the number is in use; those of the
  // runtime.
  absl::StatusOr<std::byte*> Add(uint64_t block, int64_t bytes);
  // Frees a block that is no longer used.
  void Remove(uint64_t block);

  // The memory of a range of a block.
  // Errors: FailedPrecondition if there is no such block, InvalidArgument if the range is outside
  // of it.
  absl::StatusOr<std::byte*> Find(uint64_t block, int64_t offset, int64_t bytes) const;

  // Makes the lane wait for other lanes' uses of the blocks.
  absl::Status Follow(Lanes& lanes, Lane lane, const BlockUses& uses) const;
  // Marks the blocks as in use until the point.
  void SetUsedUntil(const LanePoint& point, const BlockUses& uses);
  // Whether no lane uses the block.
  bool IsUnused(const Lanes& lanes, uint64_t block) const;

  // The bytes of all blocks.
  int64_t bytes() const { return bytes_; }

 private:
  using Points = std::array<uint64_t, kAllLanes.size()>;  // By lane.
  struct Block {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
    Points last_reads = {};
    Points last_writes = {};
  };

  GpuRuntime& runtime_;
  absl::flat_hash_map<uint64_t, Block> blocks_;
  int64_t bytes_ = 0;
};

// Operands of at most this total size are read by kernels directly from the staging area: starting
// a copy would take longer than the copy.
inline constexpr int64_t kMaxReadInPlace = int64_t{32} << 10;

// The places of a job's matrices for its kernel. Small staged matrices are used in the staging
// area, others in a range of the arena. Matrices in blocks are used there, or copied to the range
// if the kernel cannot use them in place, or if they are in parts.
class JobMemory {
 public:
  // Computes the job's needs, without allocating. `staging`: the staging area's address for
  // kernels. `parts`: those of the request. Errors: FailedPrecondition and InvalidArgument for
  // places in blocks; ResourceExhausted.
  static absl::StatusOr<JobMemory> Of(const JobRequest& request, absl::Span<const PlacedPart> parts,
                                      int64_t workspace_bytes, const BlockTable& blocks,
                                      std::byte* staging);

  // The size of the arena range. It begins with the staged matrices in their layout, if they are
  // copied.
  int64_t bytes() const { return bytes_; }
  // The bytes of staged inputs copied to the beginning of the range.
  int64_t copied_in_bytes() const { return are_inputs_in_place() ? 0 : layout_.input_bytes; }
  // The bytes after those that must be zeroed before the launch: D (unless it is elsewhere) and the
  // workspace.
  int64_t cleared_bytes() const { return copies_begin_ - copied_in_bytes(); }
  const JobLayout& layout() const { return layout_; }

  // The launch arguments with the range at this address. Borrows the request's problem.
  GemmArgs ArgsIn(std::byte* range, const Problem& problem, const Target& target) const;
  // Copies before the launch: of operands that the kernel cannot read in place.
  std::vector<MemoryLines> CopiesIn(std::byte* range) const;
  // Copies after the launch: of D, to its destination.
  std::vector<MemoryLines> CopiesOut(std::byte* range, const Problem& problem) const;
  // Copies of parts, in order: operands into the range before the launch, and D out of it after the
  // launch.
  std::vector<CopiedPart> PartCopies(std::byte* range) const;
  // Where the list of parts is placed, among the other inputs.
  const CopiedPart* PartList(const std::byte* range) const {
    const std::byte* const inputs = staged_inputs_ != nullptr ? staged_inputs_ : range;
    return reinterpret_cast<const CopiedPart*>(inputs + layout_.parts.offset);
  }
  int64_t operand_parts() const { return static_cast<int64_t>(parts_.size()) - d_parts_; }
  int64_t d_parts() const { return d_parts_; }
  int64_t max_part_bytes() const { return max_part_bytes_; }

  // The staged D in the range.
  std::byte* StagedD(std::byte* range) const { return range + layout_.input_bytes; }

  const JobMark& mark() const { return mark_; }
  // The bytes of the mark that come with the staged inputs: a copied D follows them in the range.
  int64_t staged_mark_bytes() const { return layout_.is_d_copied() ? mark_.bytes : 0; }
  // The marked bytes at the kernel's output, and at their final place. If D has no mark, the latter
  // are kMarkBytes zeros.
  std::byte* MarkedIn(std::byte* range) const { return At(matrices_.d, range) + mark_.offset; }
  std::byte* KeptIn(std::byte* range) const;

 private:
  bool are_inputs_in_place() const {
    return layout_.input_bytes <= kMaxReadInPlace && !layout_.is_d_copied();
  }

  // One matrix: at an address (in a block or the staging area), or at an offset of the range, to
  // which it may have to be copied.
  struct Matrix {
    std::byte* at = nullptr;
    int64_t in_range = -1;
    int64_t bytes = 0;
  };
  struct Matrices : PerOperand<Matrix> {
    Matrix d;
  };

  static std::byte* At(const Matrix& matrix, std::byte* range) {
    if (matrix.bytes == 0) return nullptr;
    return matrix.in_range >= 0 ? range + matrix.in_range : matrix.at;
  }
  struct Part {
    std::byte* in_block = nullptr;  // Null: discarded.
    int64_t in_range = 0;
    int64_t bytes = 0;
  };

  absl::Status Place(const JobRequest& request, const BlockTable& blocks, std::byte* staging);
  absl::Status PlaceParts(const JobRequest& request, absl::Span<const PlacedPart> parts,
                          const BlockTable& blocks);

  JobLayout layout_;
  Matrices matrices_;
  JobMark mark_;
  std::byte* staged_inputs_ = nullptr;  // If not null, inputs are read there.
  int64_t zeros_begin_ = 0;
  int64_t workspace_begin_ = 0;
  int64_t workspace_bytes_ = 0;
  int64_t copies_begin_ = 0;
  int64_t bytes_ = 0;
  std::vector<Part> parts_;
  int64_t d_parts_ = 0;
  int64_t max_part_bytes_ = 0;
};

}  // namespace gemmd
