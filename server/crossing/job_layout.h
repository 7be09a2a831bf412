// SPDX-License-Identifier: Apache-2.0
//
// What a worker is asked for as plain data: where the matrices of a job lie, in the staging area
// and in the memory of the GPU alike (one after the other, first what is read, then D), and which
// lines are to be compressed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/problem.h"
#include "server/crossing/per_operand.h"

namespace gemmd {

// Suffices for any load instruction and for LaunchOnStream.
inline constexpr int64_t kJobAlignment = 256;

// A mark has so many bytes, or as many as D has where those are fewer, but at least
// kMinMarkBytes: a result may have the bytes of a shorter one.
inline constexpr int64_t kMarkBytes = 16;
inline constexpr int64_t kMinMarkBytes = 8;

// Offsets of ranges that follow each other, each a multiple of kJobAlignment.
class AlignedRanges {
 public:
  explicit AlignedRanges(int64_t begin = 0) : end_(begin) {}
  // The offset of the next one; 0 beyond 2^63 bytes.
  int64_t Take(Checked bytes);
  // Where the next one would begin. Nothing beyond 2^63 bytes.
  std::optional<int64_t> end() const { return end_.value(); }

 private:
  Checked end_;
};

struct JobRange {
  int64_t offset = 0;
  int64_t bytes = 0;  // 0: the matrix is not there.

  friend bool operator==(const JobRange&, const JobRange&) = default;
};

// Where a matrix lies: in the staging area, at the place that its layout gives it, in a block, or
// in parts of blocks that follow each other.
struct JobPlace {
  uint64_t block = 0;  // 0: in the staging area, or in parts.
  int64_t offset = 0;  // In the block.
  // Not 0: in so many parts. A, B, C and D alone may be, and D then has no padding.
  int64_t parts = 0;

  bool is_staged() const { return block == 0 && parts == 0; }
};

// A matrix has at most so many.
inline constexpr int64_t kMaxParts = 4096;

// A part of a matrix, which follows the part before it. Those of A, B, C and D, in this order, are
// staged as one list (JobLayout::parts).
struct PlacedPart {
  uint64_t block = 0;  // 0: a part of D that nobody wants.
  int64_t offset = 0;
  int64_t bytes = 0;
};

// A D of no more bytes is written by a GPU's kernel where it is staged: to begin a copy would take
// longer than the copy.
inline constexpr int64_t kMaxWrittenInPlace = int64_t{64} << 10;

// A launch that is predicted to take longer is made in panels. Two of them are queued ahead;
// together they end well within 50 ms.
inline constexpr int64_t kLongestWholeLaunchNs = 10'000'000;

// What a kernel derives from A or B (Kernel::derived), in a block of its own.
struct FormPlace {
  uint64_t block = 0;    // 0: it is not kept.
  int64_t bytes = 0;     // As Kernel::derived says.
  uint64_t is_made = 0;  // Otherwise the job makes it.
};

struct JobPlaces : PerOperand<JobPlace> {
  FormPlace a_form;
  FormPlace b_form;
  JobPlace d;
};

// What a request does with one block.
struct BlockUse {
  uint64_t block = 0;
  bool is_write = false;
};

// Parts of all matrices together.
int64_t CountParts(const JobPlaces& places);

// The order of those who use blocks: who writes a block has turns with all others that use it.
// Takes no lock.
class BlockTurns {
 public:
  // A user takes its turns behind those who came before it, by a number of its own. Users of one
  // group, unless that is 0, are in no order.
  void Enter(uint64_t user, const std::vector<BlockUse>& uses, uint64_t group = 0);
  // Whether the user may go ahead, even if it has not entered.
  bool HasTurn(uint64_t user, const std::vector<BlockUse>& uses, uint64_t group = 0) const;
  void Leave(uint64_t user, const std::vector<BlockUse>& uses);

 private:
  struct Turn {
    uint64_t user = 0;
    uint64_t group = 0;
    bool is_write = false;
  };

  std::map<uint64_t, std::deque<Turn>> turns_;  // By block.
};

// Each block that a job uses, once. The parts are as the places say.
std::vector<BlockUse> UsesOf(const JobPlaces& places, absl::Span<const PlacedPart> parts = {});

// Staged matrices lie at their offsets; those in blocks have the offsets of their places, and those
// in parts none.
struct JobLayout : PerOperand<JobRange> {
  JobRange d;
  JobRange parts;           // The list of the parts, which is read, too.
  int64_t input_bytes = 0;  // What is staged and read ends here, and a staged D begins.
  int64_t end = 0;
  // A GPU's kernel writes D where it is staged, all bytes of it.
  bool is_d_in_place = false;

  bool is_d_staged() const { return end > input_bytes; }
  // Whether D lies in blocks, and the worker copies its marked bytes to where it is told of D.
  bool has_receipt() const { return d.bytes > 0 && !is_d_staged(); }
  // Whether D is copied to where it is staged, once the kernel has written it on the GPU.
  bool is_d_copied() const { return is_d_staged() && !is_d_in_place; }
  // What is staged for the worker to read: behind the inputs comes the mark of a D that is copied.
  int64_t staged_in_bytes() const { return input_bytes + (is_d_copied() ? kJobAlignment : 0); }
  // What it writes: D with what is left to the next multiple of kJobAlignment, or the receipt.
  int64_t staged_out_bytes() const { return has_receipt() ? kJobAlignment : end - input_bytes; }
  // How much of that it must have written.
  int64_t written_bytes() const {
    if (d.bytes == 0) return 0;
    return is_d_staged() ? std::max(d.bytes, kMarkBytes) : kMarkBytes;
  }
};

// Whether there are bits between the elements of D that no kernel writes.
bool HasGaps(const Problem& problem);

// Lays out the matrices of a valid problem. A D in a block ends with its last element, a staged one
// with the padding of its last line.
// Errors: ResourceExhausted where they take 2^63 bytes or more.
absl::StatusOr<JobLayout> LayOutJob(const Problem& problem, const JobPlaces& places = {});

// The bytes of D in which the kernel finds a mark of the front's: the first ones, of the first line
// alone where something lies between the lines, or of the first part of D that anybody wants.
struct JobMark {
  int64_t offset = 0;  // In D.
  int64_t bytes = 0;   // 0: there are fewer than kMinMarkBytes, which bear no mark.
};
JobMark MarkOf(const Problem& problem, const JobLayout& layout, const JobPlaces& places,
               absl::Span<const PlacedPart> parts);

// Each range of the layout with its place, D last.
struct PlacedRange {
  JobRange range;
  JobPlace place;
};
std::array<PlacedRange, kOperandRoles.size() + 1> RangesOf(const JobLayout& layout,
                                                           const JobPlaces& places);

// The addresses of operands are multiples of this: factors of lines are floats.
size_t AlignmentOf(const Problem& problem, OperandRole role);

// The launch of a problem on operands at these addresses, null where there is none. Borrows all of
// it.
GemmArgs ArgsAt(const Problem& problem, const Target& target,
                const PerOperand<absl::Span<const std::byte>>& operands, std::byte* d,
                absl::Span<std::byte> workspace);

// The launch of a problem all of whose matrices lie in `block`, by its layout.
GemmArgs ArgsAt(const Problem& problem, const Target& target, const JobLayout& layout,
                std::byte* block, absl::Span<std::byte> workspace);

// What a GPU is asked to compress: some lines of dense matrices in one block, into the portable
// sparse form (kernels/matrix/sparse24.h) in another one.
struct CompressTask {
  MatrixLayout dense;  // Row major.
  MatrixLayout mask;   // b1 and row major; only where mask_block is not 0.
  int64_t matrices = 1;
  uint64_t dense_block = 0;
  uint64_t mask_block = 0;  // 0: the units of the largest magnitude are kept.
  uint64_t result_block = 0;
  int64_t first_line = 0;  // The lines of all matrices are counted on.
  int64_t end_line = 0;
};

// What a task reads and writes of its blocks.
struct CompressBytes {
  int64_t dense = 0;
  int64_t mask = 0;
  int64_t result = 0;
};

// Errors: InvalidArgument for a task that is none.
absl::StatusOr<CompressBytes> BytesOf(const CompressTask& task);

// A task that BytesOf takes, with its blocks at these addresses.
CompressView ViewOf(const CompressTask& task, const std::byte* dense, const std::byte* mask,
                    std::byte* result);

}  // namespace gemmd
