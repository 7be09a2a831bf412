// SPDX-License-Identifier: Apache-2.0
//
// Verifies a server's D: compares each element with an f64 reference, computed from the operands as
// sent, within a bound on the error of a correct server.
//
// The bound holds for any order of summation. With S = sum |a||b| over k products, unit roundoff u
// of the accumulation type and gamma(n, u) = n u / (1 - n u):
//
//   |accumulator - exact| <= gamma(k, u) S + tiny terms,   |reference - exact| <= gamma(k, 2^-53) S
//
// (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1); each step of
// the epilogue adds its own rounding. Integer accumulators are exact. With block factors, a and b
// are elements times their factors, and 2 k + 4 replaces k: each part of k is rounded with its
// factors and added once more. A tensor core with 13 fraction bits truncates each of 32 products
// and their addend below 2^-13 of the largest, and then the sum: at most 34 * 2^-13 of the
// magnitudes, so that gamma(j, 2^-12) S covers a sum of j products.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/element_codec.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/block_scale.h"
#include "kernels/matrix/bound.h"

namespace gemmd {

// Reads op(X); a sparse operand reads as its dense equivalent. Borrows the message. Precondition:
// the bytes fit the layout, as BuildRequest and MultiplyResult::FromResponse check.
class MatrixReader {
 public:
  // `rows` and `columns` of op(X).
  MatrixReader(const v1::Operand& operand, v1::ElementType type, int64_t rows, int64_t columns);
  explicit MatrixReader(const v1::Matrix& matrix);
  // A bias vector, as one row.
  MatrixReader(const v1::Bias& bias, v1::ElementType type);

  double At(int64_t batch, int64_t row, int64_t column) const {
    const int64_t line = by_columns_ ? column : row;
    const int64_t index = by_columns_ ? row : column;
    const int64_t offset = batch * matrix_stride_bytes_ + line * line_stride_bytes_;
    const uint64_t pattern = LoadElement(type_, data_.substr(static_cast<size_t>(offset)), index);
    return values_.empty() ? ElementValue(type_, pattern) : values_[pattern];
  }

 private:
  void Prepare(int64_t leading_dimension);

  v1::ElementType type_;
  std::shared_ptr<const std::string> expanded_;  // The dense form of a sparse operand.
  absl::string_view data_;
  bool by_columns_;  // A line is a column of op(X).
  int64_t line_stride_bytes_ = 0;
  int64_t matrix_stride_bytes_ = 0;
  std::vector<double> values_;  // By pattern, for types of at most 16 bits.
};

// Borrows the message. Missing factors are NaN, so that no product with them is correct.
class BlockFactors {
 public:
  // `lines` rows of op(A), or columns of op(B). If the message has no type, every factor is 1.
  BlockFactors(const v1::BlockScale& blocks, int64_t lines, int64_t k);

  double At(int64_t batch, int64_t line, int64_t k) const;

 private:
  const std::string& factors_;
  bool has_factors_;
  BlockScale blocks_;
  int64_t lines_;
  int64_t k_;
};

// How the device of an answer may have summed.
enum class Summation {
  kOfType,  // In the accumulation type.
  // As tensor cores do: F32 sums of 8-bit floats keep 13 fraction bits over 128 of k, or over all
  // of k with fast accumulation.
  kOfTensorCore,
};
// kOfType for the device `cpu`, kOfTensorCore for GPUs and simulators.
Summation SummationOn(absl::string_view device);

// The accumulation type used if the request names none.
v1::ElementType DefaultAccumulationType(v1::ElementType a, v1::ElementType b);

// The elements of D before their conversion to its type. Borrows the request.
class Reference {
 public:
  // Precondition: BuildRequest made the request, with all bytes in it.
  explicit Reference(const v1::MultiplyRequest& request, Summation summation = Summation::kOfType);

  // n elements of each of the given rows of one matrix, row after row.
  std::vector<BoundedElement> Rows(int64_t batch, const std::vector<int64_t>& rows) const;

 private:
  // The dot products of `rows` of op(A) with all n columns of op(B), row after row, with block
  // factors applied. For b1, uses the request's bit operation.
  std::vector<DotProduct> DotProducts(int64_t batch, const std::vector<int64_t>& rows) const;
  BoundedElement Finish(const DotProduct& dot, int64_t batch, int64_t row, int64_t column) const;

  // The number of elements of k that are summed with 13 fraction bits; 0: none.
  int64_t NarrowDepth() const;

  const v1::MultiplyRequest& request_;
  Summation summation_;
  v1::ElementType accumulation_type_;
  bool reads_product_;
  MatrixReader a_;
  MatrixReader b_;
  BlockFactors a_factors_;
  BlockFactors b_factors_;
  std::optional<MatrixReader> c_;
  std::optional<MatrixReader> bias_;
};

// Limits on recomputation. If the product exceeds them, rows are sampled evenly.
struct VerifyBudget {
  int64_t multiplications = int64_t{1} << 28;  // About a second.
  int64_t elements = int64_t{1} << 22;         // 32 bytes of memory each.
};

// An element of D and what it should be.
struct VerifiedElement {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t column = 0;
  double got = 0;
  double want = 0;   // The f64 reference, before conversion to D's type.
  double error = 0;  // |got - want|; NaN if got is.
  double bound = 0;  // The largest error that a correct result may have, conversion included.
};

struct Verification {
  int64_t total = 0;    // Elements of D.
  int64_t checked = 0;  // Elements that were compared.
  int64_t undecidable =
      0;              // Not compared: whether they overflow depends on the order of summation.
  int64_t wrong = 0;  // Elements that were compared and are wrong.
  VerifiedElement
      worst;  // The first wrong element; else the one with the largest share of its bound.

  // Whether nothing is wrong, and at least one element was compared (unless D is empty).
  bool passed() const { return wrong == 0 && (checked > 0 || total == 0); }
};

// Precondition: the request comes from BuildRequest with its bytes, and D from a MultiplyResult.
// Errors: InvalidArgument if D's shape or type does not fit the request.
absl::StatusOr<Verification> Verify(const v1::MultiplyRequest& request, const v1::Matrix& d,
                                    const VerifyBudget& budget = {},
                                    Summation summation = Summation::kOfType);

}  // namespace gemmd
