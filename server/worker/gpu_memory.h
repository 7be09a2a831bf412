// SPDX-License-Identifier: Apache-2.0
//
// The memory of a GPU, as its worker gives it out: an arena for jobs, blocks that outlive jobs, and
// where the matrices of a job lie in both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/per_operand.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

// The GPU's memory for jobs: a few slabs that are kept from job to job, in which each job under way
// has a range. There are as many and as large ones as jobs at once have needed.
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

  // Takes a range of so many bytes, aligned to 256, with arbitrary content; null for 0 bytes.
  // Errors: Unavailable where there will be room once others have given theirs back;
  // ResourceExhausted over the limit, or where the GPU has no more.
  absl::StatusOr<Range> Reserve(int64_t bytes);
  // Nothing uses the range any longer.
  void GiveBack(const Range& range);

  // What the slabs may take together from now on. They may take more already.
  void SetLimit(int64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  int64_t bytes() const { return bytes_; }  // What all slabs take.
  // Frees the slabs in which no range is taken.
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

// The blocks of a GPU's memory. A lane follows what other lanes do with a block.
class BlockTable {
 public:
  // Borrows the runtime.
  explicit BlockTable(GpuRuntime& runtime) : runtime_(runtime) {}
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // Takes memory for a block, which is `is_scratch` where it belongs to one product.
  // Errors: InvalidArgument where the number is in use; those of the runtime.
  absl::StatusOr<std::byte*> Add(uint64_t block, int64_t bytes, bool is_scratch);
  // Gives it back. Nothing uses it any longer.
  void Remove(uint64_t block);

  // The memory of a range of a block.
  // Errors: FailedPrecondition where there is no such block, InvalidArgument where the range is not
  // within it.
  absl::StatusOr<std::byte*> Find(uint64_t block, int64_t offset, int64_t bytes) const;

  // Has the lane wait for what other lanes do with the blocks.
  absl::Status Follow(Lanes& lanes, Lane lane, const std::vector<BlockUse>& uses) const;
  // The blocks are in use until the point.
  void SetUsedUntil(const LanePoint& point, const std::vector<BlockUse>& uses);
  // Whether no lane uses the block any longer.
  bool IsUnused(const Lanes& lanes, uint64_t block) const;

  int64_t tensor_bytes() const { return tensor_bytes_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  using Points = std::array<uint64_t, kAllLanes.size()>;  // By lane.
  struct Block {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
    bool is_scratch = false;
    Points last_reads = {};
    Points last_writes = {};
  };

  int64_t& BytesOf(const Block& block) { return block.is_scratch ? scratch_bytes_ : tensor_bytes_; }

  GpuRuntime& runtime_;
  std::map<uint64_t, Block> blocks_;
  int64_t tensor_bytes_ = 0;
  int64_t scratch_bytes_ = 0;
};

// Operands of no more bytes together are read by a kernel where they are staged: to begin a copy
// would take longer than the copy.
inline constexpr int64_t kMaxReadInPlace = int64_t{32} << 10;

// Where a kernel finds the matrices of a job: staged ones where they are staged, if they are small,
// and otherwise in a range of the arena, those of blocks there, or as copies in the range where a
// kernel cannot read or write them as they lie, or where they are in parts.
class JobMemory {
 public:
  // Works out what the job needs; nothing is taken. `staging`: where kernels find what is staged.
  // `parts` are those of the request. Errors: FailedPrecondition and InvalidArgument for places in
  // blocks; ResourceExhausted.
  static absl::StatusOr<JobMemory> Of(const JobRequest& request, absl::Span<const PlacedPart> parts,
                                      int64_t workspace_bytes, const BlockTable& blocks,
                                      std::byte* staging);

  // What the range of the arena takes. It begins as the staged matrices do in their layout, as far
  // as they are copied.
  int64_t bytes() const { return bytes_; }
  // What of the staged inputs is copied to the beginning of the range.
  int64_t copied_in_bytes() const { return are_inputs_in_place() ? 0 : layout_.input_bytes; }
  // What follows those in the range and is to be zeros before the launch: D, unless it is made
  // elsewhere, and the workspace.
  int64_t cleared_bytes() const { return copies_begin_ - copied_in_bytes(); }
  const JobLayout& layout() const { return layout_; }

  // With the range at this address. Borrows the problem of the request.
  GemmArgs ArgsIn(std::byte* range, const Problem& problem, const Target& target) const;
  // Before the launch: operands that do not lie where a kernel reads them.
  std::vector<MemoryLines> CopiesIn(std::byte* range) const;
  // After it: D, to where it belongs.
  std::vector<MemoryLines> CopiesOut(std::byte* range, const Problem& problem) const;
  // Copies of parts, in their order: those of the operands into the range, before the launch, and
  // those of D out of it, after it.
  std::vector<CopiedPart> PartCopies(std::byte* range) const;
  // Where they are to be, with the other inputs.
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
  // What of the mark comes with the staged inputs: a D that is copied follows those in the range.
  int64_t staged_mark_bytes() const { return layout_.is_d_copied() ? mark_.bytes : 0; }
  // The marked bytes where the kernel writes them, and where they then stay. Where D bears no mark,
  // those that stay are kMarkBytes zeros.
  std::byte* MarkedIn(std::byte* range) const { return At(matrices_.d, range) + mark_.offset; }
  std::byte* KeptIn(std::byte* range) const;

 private:
  bool are_inputs_in_place() const {
    return layout_.input_bytes <= kMaxReadInPlace && !layout_.is_d_copied();
  }

  // One matrix: at an address, in a block or where it is staged, or at an offset of the range, into
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
    std::byte* in_block = nullptr;  // Null: nobody wants it.
    int64_t in_range = 0;
    int64_t bytes = 0;
  };

  absl::Status Place(const JobRequest& request, const BlockTable& blocks, std::byte* staging);
  absl::Status PlaceParts(const JobRequest& request, absl::Span<const PlacedPart> parts,
                          const BlockTable& blocks);

  JobLayout layout_;
  Matrices matrices_;
  JobMark mark_;
  std::byte* staged_inputs_ = nullptr;  // Not null: they are read there.
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
