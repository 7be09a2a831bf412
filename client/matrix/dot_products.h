// SPDX-License-Identifier: Apache-2.0
//
// Sums of products in f64, with what is needed to bound the sums of another machine.
#pragma once

#include <cstdint>
#include <vector>

#include "client/matrix/block_factors.h"
#include "client/matrix/matrix_reader.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// The terms of one element of A B.
struct DotProduct {
  double sum = 0;         // Sum of the finite products.
  double magnitude = 0;   // Sum of their absolute values; infinite where one overflows f64.
  double flushable = 0;   // The part of `magnitude` that has a factor below 2^-126.
  double non_finite = 0;  // Sum of the infinite and NaN products; 0 where there are none.
};

// The products of `rows` of op(A) with all n columns of op(B), row after row, each element times
// the factor of its block. Bits are combined by `bit_operation` where `is_bits`.
struct DotProductInput {
  const MatrixReader& a;
  const MatrixReader& b;
  const BlockFactors& a_factors;
  const BlockFactors& b_factors;
  int64_t n;
  int64_t k;
  bool is_bits;
  v1::BitOperation bit_operation;
};
std::vector<DotProduct> DotProducts(const DotProductInput& input, int64_t batch,
                                    const std::vector<int64_t>& rows);

}  // namespace gemmd
