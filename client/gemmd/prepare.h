// SPDX-License-Identifier: Apache-2.0
//
// Matrices made ready for the server here: of another type, scaled down to 8 bits, or pruned to
// 2:4.
//
//   auto w8 = gemmd::Quantize(w, k, n, gemmd::v1::kE4m3, gemmd::ScalePer::kColumn);
//   auto weights = client->Put(w8->view());
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gemmd/product.h"

namespace gemmd {

// A matrix, or a batch of them without gaps, that owns its bytes. Row major.
struct OwnedMatrix {
  v1::ElementType type = {};
  int64_t rows = 0;
  int64_t columns = 0;
  v1::Sparsity sparsity = v1::kDense;
  std::string data = {};  // Lines without gaps, packed as tensors.proto says.
  std::vector<float> scale = {};
  std::string factors = {};  // Those of blocks, as the other members say; empty: none.
  v1::FactorType factor_type = {};
  int64_t rows_per_block = 0;
  int64_t k_per_block = 0;
  int64_t dropped = 0;  // Nonzero elements that pruning left out.

  // Valid while this is there, unchanged.
  MatrixView view() const;
};

// `rows` x `columns` values as elements of `type`, which rounds to nearest, ties to even; see
// OutputSpec.type for what exceeds it.
// Errors: InvalidArgument for an unknown type, or another count of values.
absl::StatusOr<OwnedMatrix> Encode(std::span<const float> values, int64_t rows, int64_t columns,
                                   v1::ElementType type);

// The values of a dense matrix, in row-major order, whatever its own; a batch one after the other.
// f64 and s32 round. Errors: InvalidArgument where the bytes do not fit the shape, or are sparse.
absl::StatusOr<std::vector<float>> Decode(const MatrixView& matrix);

// How many factors a quantized matrix has: one for all of it, or one for each row or column, which
// must be those that the product scales by: rows of op(A), columns of op(B).
enum class ScalePer { kMatrix, kRow, kColumn };

// `rows` x `columns` values as elements of an 8-bit type (e4m3, e5m2, s8, u8) times factors: each
// factor brings the largest magnitude that it is for to the largest value of the type (127 for s8).
// Errors: InvalidArgument for another type, another count of values, negative ones for u8, or
// infinities and NaN. A matrix without elements has one factor, 1.
absl::StatusOr<OwnedMatrix> Quantize(std::span<const float> values, int64_t rows, int64_t columns,
                                     v1::ElementType type, ScalePer per = ScalePer::kMatrix);

// How a matrix is divided into blocks that have a factor each: so many lines times so many elements
// along k. The lines are the rows of op(A), or the columns of op(B).
struct BlockFormat {
  v1::FactorType type = v1::kFactorF32;
  int64_t lines = 1;
  int64_t depth = 128;
  // Whether k runs along the rows of the values, from column to column: an A as it is, or a B that
  // is used transposed. False: k runs down the columns, as in a B that is used as it is.
  bool is_k_along_rows = true;
};

// `rows` x `columns` values as elements of a float of at most 8 bits, times a factor for each
// block: the least factor of its type with which the block's largest magnitude is at most the
// largest value of the element type (f32: the nearest). Blocks of zeros have the factor 1. OCP's MX
// is {UE8M0, 1, 32}, NVFP4 {UE4M3, 1, 16} of e2m1. Errors: InvalidArgument for another type,
// another count of values, blocks of less than one element, or infinities and NaN.
absl::StatusOr<OwnedMatrix> QuantizeBlocks(std::span<const float> values, int64_t rows,
                                           int64_t columns, v1::ElementType type,
                                           const BlockFormat& format);

// What becomes of a group that has more nonzero elements than a 2:4 matrix keeps.
enum class Prune { kRefuse, kSmallest };

// The 2:4 form (Sparsity in tensors.proto) of a dense matrix, of op(X) where it is transposed. The
// smallest magnitudes go; of equal ones the last.
// Errors: InvalidArgument where the bytes do not fit the shape, the type has no such form, the
// lines are padded, or a group has too many elements and none may go.
absl::StatusOr<OwnedMatrix> Pack24(const MatrixView& dense, Prune prune = Prune::kSmallest);

}  // namespace gemmd
