// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of Tensors.Compress: a 2:4 tensor of a dense one, step by step, so that whoever
// does the steps can stop between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/sparse24.h"
#include "server/store/tensor.h"

namespace gemmd {

// What is compressed, and into what.
struct CompressionPlan {
  MatrixLayout dense;
  std::optional<MatrixLayout> mask;
  SparseLayout sparse;  // Each matrix by itself.
  TensorSpec result;
};

// Null as `mask`: the units of the largest magnitude are kept. Errors: InvalidArgument where there
// is no sparse form of the tensor, where its factors would not hold, or where the mask does not
// fit.
absl::StatusOr<CompressionPlan> PlanCompression(const TensorSpec& dense, const TensorSpec* mask);

class Compression {
 public:
  // A step reads about so many bytes: some milliseconds of work.
  static constexpr int64_t kStepBytes = int64_t{256} << 10;

  // Memory of the steps, which compressions that take turns may share.
  struct Scratch {
    std::vector<std::byte> dense;
    std::vector<std::byte> mask;
    std::vector<std::byte> compressed;
  };

  // Borrows the bytes: all matrices of the plan's tensors; null as `mask` where there is none.
  Compression(const CompressionPlan& plan, const std::byte* dense, const std::byte* mask,
              std::byte* compressed);

  // Goes on. True once everything is done. What another thread writes into the tensor meanwhile is
  // taken or not, element by element: the result is a valid 2:4 matrix all the same. Errors:
  // InvalidArgument for a mask that keeps too much, by its first group; then it is over.
  absl::StatusOr<bool> Step(Scratch& scratch);

 private:
  // A part of one matrix: some whole rows, or some columns of one row.
  struct Block {
    int64_t row = 0;
    int64_t rows = 0;
    int64_t column = 0;
    int64_t columns = 0;
  };

  Block NextBlock() const;
  absl::Status Compress(const Block& block, Scratch& scratch) const;
  absl::Status Prune(const Block& block, const SparseLayout& layout, Scratch& scratch) const;
  void Store(const Block& block, const SparseLayout& layout, const std::byte* compressed) const;
  void Advance(const Block& block);

  CompressionPlan plan_;
  const std::byte* dense_;
  const std::byte* mask_;
  std::byte* compressed_;
  int64_t matrix_ = 0;  // Where the next block begins.
  int64_t row_ = 0;
  int64_t column_ = 0;
};

}  // namespace gemmd
