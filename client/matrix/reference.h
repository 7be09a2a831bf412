// SPDX-License-Identifier: Apache-2.0
//
// What D must be: each element in f64 from the operands as sent, with a bound on what a correct
// server may return instead.
//
// The bound holds for any order of summation. With S = sum |a||b| over k products, unit roundoff u
// of the accumulation type and gamma(n, u) = n u / (1 - n u):
//
//   |accumulator - exact| <= gamma(k, u) S + tiny terms,   |reference - exact| <= gamma(k, 2^-53) S
//
// (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1); each step of
// the epilogue adds its own rounding. Integer accumulators are exact. With factors of blocks, a and
// b are elements times their factors, and 2 k + 4 takes the place of k: each part of k is rounded
// with its factors and added once more.
//
// A tensor core that keeps 13 fraction bits cuts each of 32 products and their addend below 2^-13
// of the largest, and then the sum: at most 34 * 2^-13 of the magnitudes, so that gamma(j, 2^-12) S
// covers a sum of j products.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/matrix/dot_products.h"
#include "client/matrix/matrix_reader.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// One element: the exact result lies within `error` of `value`.
struct ReferenceElement {
  double value = 0;
  double error = 0;
  bool is_decidable =
      true;  // False where a partial sum may overflow in one order and not in another.
};

// How the device of an answer may have made sums.
enum class Summation {
  kOfType,  // In the accumulation type.
  // As tensor cores do it: F32 sums of 8-bit floats keep 13 fraction bits over 128 of k, or over
  // all of it with fast accumulation.
  kOfTensorCore,
};
// kOfType for the device `cpu`, kOfTensorCore for GPUs and simulators.
Summation SummationOn(absl::string_view device);

// The accumulation type that holds where none is asked for.
v1::ElementType DefaultAccumulationType(v1::ElementType a);

// The elements of D before their conversion to its type. Borrows the request.
class Reference {
 public:
  // Precondition: BuildRequest made the request, with all bytes in it.
  explicit Reference(const v1::MultiplyRequest& request, Summation summation = Summation::kOfType);

  // n elements of each of the given rows of one matrix, row after row.
  std::vector<ReferenceElement> Rows(int64_t batch, const std::vector<int64_t>& rows) const;

 private:
  struct Position {
    int64_t batch;
    int64_t row;
    int64_t column;
  };
  ReferenceElement Finish(const DotProduct& dot, const Position& at) const;

  // The number of elements of k that are summed up in 13 fraction bits; 0: none.
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

}  // namespace gemmd
