// SPDX-License-Identifier: Apache-2.0
//
// Prepares matrices on the client: converts their type, quantizes them, or prunes them to 2:4
// sparsity.
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
  std::string data = {};  // Lines without gaps, packed as tensors.proto specifies.
  std::vector<float> scale = {};
  std::string factors = {};  // Block factors, described by the members below; empty: none.
  bool is_k_along_rows = true;
  v1::FactorType factor_type = {};
  int64_t rows_per_block = 0;
  int64_t k_per_block = 0;
  int64_t dropped = 0;  // Nonzero elements that pruning removed.

  // Valid while this object exists unchanged.
  MatrixView view() const;
};

// Converts `rows` x `columns` values to `type`, rounding to nearest, ties to even; see
// OutputSpec.type for overflow. Errors: InvalidArgument for an unknown type or a wrong number of
// values.
absl::StatusOr<OwnedMatrix> Encode(std::span<const float> values, int64_t rows, int64_t columns,
                                   v1::ElementType type);

// Converts a dense matrix in any order to row-major floats; the matrices of a batch follow one
// another. f64 and s32 values are rounded. Errors: InvalidArgument if the bytes do not fit the
// shape, or the matrix is sparse.
absl::StatusOr<std::vector<float>> Decode(const MatrixView& matrix);

// Granularity of the factors of a quantized matrix: one for the whole matrix, or one per row or
// column. A product scales rows of op(A) and columns of op(B), so choose the matching one.
enum class ScalePer { kMatrix, kRow, kColumn };

// Converts `rows` x `columns` values to an 8-bit type (e4m3, e5m2, s8, u8) times factors. Each
// factor maps the largest magnitude that it covers to the type's largest value (127 for s8). An
// empty matrix has one factor, 1. Errors: InvalidArgument for another type, a wrong number of
// values, negative values for u8, infinities or NaN.
absl::StatusOr<OwnedMatrix> Quantize(std::span<const float> values, int64_t rows, int64_t columns,
                                     v1::ElementType type, ScalePer per = ScalePer::kMatrix);

// How a matrix is divided into blocks with one factor each. A block is `lines` rows of op(A), or
// columns of op(B), by `depth` elements along k.
struct BlockFormat {
  v1::FactorType type = v1::kFactorF32;
  int64_t lines = 1;
  int64_t depth = 128;
  // Whether each row of the values runs along k: A untransposed, or B transposed. If false, each
  // column does: B untransposed.
  bool is_k_along_rows = true;
};

// Converts `rows` x `columns` values to a float type of at most 8 bits, s8 or s4, times one factor
// per block: the smallest factor of its type that keeps the block's largest magnitude within the
// element type's range (f32: the nearest), which is symmetric for integers (127, 7). A block of
// zeros has the factor 1. OCP MX is {UE8M0, 1, 32}; NVFP4 is {UE4M3, 1, 16} with e2m1; s4 weights
// in groups of 128 are {F32, 1, 128}, for products with f16 or bf16. Errors: InvalidArgument for
// another type, a wrong number of values, blocks of less than one element, infinities or NaN.
absl::StatusOr<OwnedMatrix> QuantizeBlocks(std::span<const float> values, int64_t rows,
                                           int64_t columns, v1::ElementType type,
                                           const BlockFormat& format);

// Treatment of a group with more nonzero elements than a 2:4 matrix keeps: refuse the matrix, or
// drop the smallest.
enum class Prune { kRefuse, kSmallest };

// Returns the 2:4 form (Sparsity in tensors.proto) of a dense matrix, or of op(X) if the view is
// transposed. Drops the smallest magnitudes of each group; among equal magnitudes, the last.
// Errors: InvalidArgument if the bytes do not fit the shape, the type has no 2:4 form, the lines
// are padded, or a group has too many nonzero elements under kRefuse.
absl::StatusOr<OwnedMatrix> Pack24(const MatrixView& dense, Prune prune = Prune::kSmallest);

}  // namespace gemmd
