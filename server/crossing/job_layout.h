// SPDX-License-Identifier: Apache-2.0
//
// Requests to a worker as plain data: where the matrices of a job are, with the same layout in the
// staging area and in GPU memory (inputs first, then D), and which lines to compress.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/per_operand.h"
#include "kernels/problem.h"

namespace gemmd {

// Enough for any load instruction and for LaunchOnStream.
inline constexpr int64_t kJobAlignment = 256;

// Length of a mark, or the length of D if that is less, but at least kMinMarkBytes: a result may
// happen to equal a shorter mark.
inline constexpr int64_t kMarkBytes = 16;
inline constexpr int64_t kMinMarkBytes = 8;

// Offsets of consecutive ranges, each a multiple of kJobAlignment.
class AlignedRanges {
 public:
  explicit AlignedRanges(int64_t begin = 0) : end_(begin) {}
  // The offset of the next range; 0 beyond 2^63 bytes.
  int64_t Take(Checked bytes);
  // Where the next range would begin. nullopt beyond 2^63 bytes.
  std::optional<int64_t> end() const { return end_.value(); }

 private:
  Checked end_;
};

// Some bytes of memory or of a tensor. Where a matrix is expected, 0 bytes say that there is none.
struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;

  int64_t end() const { return offset + bytes; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Where a matrix is: in the staging area at its offset in the layout, in a block, or in consecutive
// parts of blocks.
struct JobPlace {
  uint64_t block = 0;  // 0: in the staging area, or in parts.
  int64_t offset = 0;  // In the block.
  // Number of parts, or 0. Only A, B, C and D can be in parts; D then has no padding.
  int64_t parts = 0;

  bool is_staged() const { return block == 0 && parts == 0; }
};

// Max parts of a matrix.
inline constexpr int64_t kMaxParts = 4096;

// A part of a matrix, which follows the previous part. The parts of A, B, C and D, in this order,
// are staged as one list (JobLayout::parts).
struct PlacedPart {
  uint64_t block = 0;  // 0: a part of D that is not needed.
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Up to this length, a GPU kernel writes D directly to the staging area: starting a copy would take
// longer than the copy.
inline constexpr int64_t kMaxWrittenInPlace = int64_t{64} << 10;

// A launch predicted to take longer is split into panels. Two panels are queued ahead; together
// they end well within 50 ms.
inline constexpr int64_t kLongestWholeLaunchNs = 10'000'000;

// The form that a kernel derives from A or B (Kernel::derived), in its own block.
struct FormPlace {
  uint64_t block = 0;    // 0: it is not kept.
  int64_t bytes = 0;     // As defined by Kernel::derived.
  uint64_t is_made = 0;  // Otherwise the job makes it.
};

struct JobPlaces : PerOperand<JobPlace> {
  FormPlace a_form;
  FormPlace b_form;
  JobPlace d;
};

// How a request uses one block.
struct BlockUse {
  uint64_t block = 0;
  bool is_write = false;
};
using BlockUses = absl::InlinedVector<BlockUse, 4>;

// Total number of parts of all matrices.
int64_t CountParts(const JobPlaces& places);

// Orders the users of blocks: a writer of a block takes turns with all other users of it. Takes no
// lock.
class BlockTurns {
 public:
  // Puts a user, with a unique number, behind earlier users. Users of the same group are not
  // ordered, unless the group is 0.
  void Enter(uint64_t user, const BlockUses& uses, uint64_t group = 0);
  // Whether the user may proceed, even if it has not entered.
  bool HasTurn(uint64_t user, const BlockUses& uses, uint64_t group = 0) const;
  void Leave(uint64_t user, const BlockUses& uses);

 private:
  struct Turn {
    uint64_t user = 0;
    uint64_t group = 0;
    bool is_write = false;
  };

  // By block, in the order of their coming. Few users share a block.
  absl::flat_hash_map<uint64_t, absl::InlinedVector<Turn, 2>> turns_;
};

// Each block that a job uses, once. `parts` are those that the places refer to.
BlockUses UsesOf(const JobPlaces& places, absl::Span<const PlacedPart> parts = {});

// Staged matrices have their offset in the staging area, matrices in blocks the offset of their
// place, and matrices in parts none.
struct JobLayout : PerOperand<ByteRange> {
  ByteRange d;
  ByteRange parts;          // The list of parts, which is also read.
  int64_t input_bytes = 0;  // End of the staged inputs, and start of a staged D.
  int64_t end = 0;
  // A GPU kernel writes all bytes of D directly to the staging area.
  bool is_d_in_place = false;

  bool is_d_staged() const { return end > input_bytes; }
  // Whether D is in blocks, and the worker copies its marked bytes to the offset given for D.
  bool has_receipt() const { return d.bytes > 0 && !is_d_staged(); }
  // Whether D is copied to the staging area after the kernel has written it on the GPU.
  bool is_d_copied() const { return is_d_staged() && !is_d_in_place; }
  // Staged bytes that the worker reads: the inputs, then the mark of a D that is copied.
  int64_t staged_in_bytes() const { return input_bytes + (is_d_copied() ? kJobAlignment : 0); }
  // Staged bytes that the worker writes: D, padded to a multiple of kJobAlignment, or the receipt.
  int64_t staged_out_bytes() const { return has_receipt() ? kJobAlignment : end - input_bytes; }
  // How many of those it must have written.
  int64_t written_bytes() const {
    if (d.bytes == 0) return 0;
    return is_d_staged() ? std::max(d.bytes, kMarkBytes) : kMarkBytes;
  }
};

// Whether D has bits between its elements that no kernel writes.
bool HasGaps(const Problem& problem);

// Lays out the matrices of a valid problem. A D in a block ends with its last element, a staged D
// with the padding of its last line. Errors: ResourceExhausted if they take 2^63 bytes or more.
absl::StatusOr<JobLayout> LayOutJob(const Problem& problem, const JobPlaces& places = {});

// The bytes of D that contain the front's mark before the kernel writes them: the first bytes, only
// of the first line if there are gaps between lines, or of the first part of D that is needed.
struct JobMark {
  int64_t offset = 0;  // In D.
  int64_t bytes = 0;   // 0: fewer than kMinMarkBytes, so no mark.
};
JobMark MarkOf(const Problem& problem, const JobLayout& layout, const JobPlaces& places,
               absl::Span<const PlacedPart> parts);

// A range of the layout with its place; D is last.
struct PlacedRange {
  ByteRange range;
  JobPlace place;
};
std::array<PlacedRange, kOperandRoles.size() + 1> RangesOf(const JobLayout& layout,
                                                           const JobPlaces& places);

// A part of D computed by a separate job: several whole matrices of a batch, or some rows and
// columns of one. k is never divided: every element of D is one sum, with the same bits as in the
// whole, with the same kernel.
struct Panel {
  struct Extent {
    int64_t first = 0;  // Along lines of matrices: a multiple of 8, so that it begins at a byte.
    int64_t count = 0;
  };
  Extent matrices;
  Extent rows;
  Extent columns;
};

// The problem of a panel. An operand in host memory that is divided along its lines must be
// gathered into lines without gaps, and such a D is scattered; all others keep the lines and
// strides of the whole.
struct PanelProblem {
  Problem problem;
  // Where each matrix begins: in its block or, in host memory, relative to the whole matrix.
  JobPlaces places;
};
PanelProblem ProblemOfPanel(const Problem& whole, const JobPlaces& places, const Panel& panel);

// The addresses of operands are multiples of this: factors of lines are floats.
size_t AlignmentOf(const Problem& problem, OperandRole role);

// The launch of a problem on operands at these addresses (null: no such operand). Borrows
// everything.
GemmArgs ArgsAt(const Problem& problem, const Target& target,
                const PerOperand<absl::Span<const std::byte>>& operands, std::byte* d,
                absl::Span<std::byte> workspace);

// The launch of a problem whose matrices are all in `block`, at the offsets of the layout.
GemmArgs ArgsAt(const Problem& problem, const Target& target, const JobLayout& layout,
                std::byte* block, absl::Span<std::byte> workspace);

// A compression on a GPU: some lines of dense matrices in one block, to the portable sparse form
// (kernels/matrix/sparse24.h) in another block.
struct CompressTask {
  MatrixLayout dense;  // Row major.
  MatrixLayout mask;   // b1 and row major; only if mask_block is not 0.
  int64_t matrices = 1;
  uint64_t dense_block = 0;
  uint64_t mask_block = 0;  // 0: the units of the largest magnitude are kept.
  uint64_t result_block = 0;
  int64_t first_line = 0;  // Lines are counted across all matrices.
  int64_t end_line = 0;
};

// The bytes of its blocks that a task reads and writes.
struct CompressBytes {
  int64_t dense = 0;
  int64_t mask = 0;
  int64_t result = 0;
};

// Errors: InvalidArgument for an invalid task.
absl::StatusOr<CompressBytes> BytesOf(const CompressTask& task);

// The view of a task that BytesOf accepts, with its blocks at these addresses.
CompressView ViewOf(const CompressTask& task, const std::byte* dense, const std::byte* mask,
                    std::byte* result);

}  // namespace gemmd
