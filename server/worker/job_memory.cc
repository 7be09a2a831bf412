// SPDX-License-Identifier: Apache-2.0
#include "server/worker/job_memory.h"

#include <optional>

#include "kernels/checked.h"
#include "kernels/status_macros.h"

namespace gemmd {
namespace {

bool IsAligned(const std::byte* at) {
  return reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(kJobAlignment) == 0;
}

bool Overlap(const std::byte* a, int64_t a_bytes, const std::byte* b, int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Offsets of ranges that follow each other.
class Taken {
 public:
  explicit Taken(int64_t begin) : end_(begin) {}
  int64_t Take(int64_t bytes) {
    const int64_t begin = end_.value().value_or(0);
    const Checked padded = end_ + Checked(bytes) + Checked(kJobAlignment - 1);
    end_ = padded.value() ? Checked(*padded.value() / kJobAlignment * kJobAlignment) : padded;
    return begin;
  }
  std::optional<int64_t> end() const { return end_.value(); }

 private:
  Checked end_;
};

}  // namespace

absl::StatusOr<JobMemory> JobMemory::Of(const JobRequest& request, int64_t workspace_bytes,
                                        const BlockTable& blocks) {
  JobMemory memory;
  memory.workspace_bytes_ = workspace_bytes;
  ASSIGN_OR_RETURN(memory.layout_, LayOutJob(request.problem, request.places));
  RETURN_IF_ERROR(memory.Place(request, blocks));
  return memory;
}

absl::Status JobMemory::Place(const JobRequest& request, const BlockTable& blocks) {
  const std::array<PlacedRange, 7> ranges = RangesOf(layout_, request.places);
  Taken taken(layout_.end);
  const JobPlace& d_place = request.places.d;
  std::byte* d = nullptr;
  if (d_place.block != 0) {
    ASSIGN_OR_RETURN(d, blocks.Find(d_place.block, d_place.offset, layout_.d.bytes));
  }
  matrices_[kD] = {.in_block = d, .bytes = layout_.d.bytes};
  if (d == nullptr) {
    matrices_[kD].in_range = layout_.d.offset;
  } else if (!IsAligned(d)) {
    matrices_[kD].in_range = taken.Take(layout_.d.bytes);
  }
  workspace_begin_ = taken.Take(workspace_bytes_);
  copies_begin_ = taken.end().value_or(0);
  for (size_t i = 0; i < kD; ++i) {
    const auto& [range, place] = ranges[i];
    Matrix& matrix = matrices_[i];
    matrix.bytes = range.bytes;
    if (range.bytes == 0) continue;
    if (place.block == 0) {
      matrix.in_range = range.offset;
      continue;
    }
    ASSIGN_OR_RETURN(matrix.in_block, blocks.Find(place.block, place.offset, range.bytes));
    // A kernel writes D while it still reads.
    const bool is_written =
        d != nullptr && Overlap(matrix.in_block, range.bytes, d, layout_.d.bytes);
    if (!IsAligned(matrix.in_block) || is_written) matrix.in_range = taken.Take(range.bytes);
  }
  if (!taken.end()) return absl::ResourceExhaustedError("the job takes more than 2^63 bytes");
  bytes_ = *taken.end();
  return absl::OkStatus();
}

GemmArgs JobMemory::ArgsIn(std::byte* range, const Problem& problem, const Target& target) const {
  const JobPointers pointers = {.a = At(matrices_[0], range),
                                .b = At(matrices_[1], range),
                                .c = At(matrices_[2], range),
                                .bias = At(matrices_[3], range),
                                .a_scale = At(matrices_[4], range),
                                .b_scale = At(matrices_[5], range),
                                .d = At(matrices_[kD], range)};
  return ArgsAt(problem, target, layout_, pointers,
                absl::MakeSpan(range + workspace_begin_, static_cast<size_t>(workspace_bytes_)));
}

std::vector<MemoryLines> JobMemory::CopiesIn(std::byte* range) const {
  std::vector<MemoryLines> copies;
  for (size_t i = 0; i < kD; ++i) {
    const Matrix& matrix = matrices_[i];
    if (matrix.in_block == nullptr || matrix.in_range < 0) continue;
    copies.push_back({.to = range + matrix.in_range,
                      .to_stride_bytes = matrix.bytes,
                      .from = matrix.in_block,
                      .from_stride_bytes = matrix.bytes,
                      .line_bytes = matrix.bytes,
                      .lines = 1});
  }
  return copies;
}

// What lies between the lines in the block is not D's.
std::vector<MemoryLines> JobMemory::CopiesOut(std::byte* range, const Problem& problem) const {
  std::vector<MemoryLines> copies;
  const Matrix& d = matrices_[kD];
  if (d.in_block == nullptr || d.in_range < 0 || !problem.has_output()) return copies;
  const MatrixLayout& layout = problem.d;
  const int64_t line_bytes = (layout.line_length() * BitsOf(layout.type) + 7) / 8;
  for (int64_t i = 0; i < problem.batch; ++i) {
    const int64_t at = i * layout.batch_stride_bytes;
    copies.push_back({.to = d.in_block + at,
                      .to_stride_bytes = layout.line_stride_bytes(),
                      .from = range + d.in_range + at,
                      .from_stride_bytes = layout.line_stride_bytes(),
                      .line_bytes = line_bytes,
                      .lines = layout.lines()});
  }
  return copies;
}

}  // namespace gemmd
