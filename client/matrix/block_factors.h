// SPDX-License-Identifier: Apache-2.0
//
// The factors of the blocks of an operand, one by one.
#pragma once

#include <array>
#include <cstdint>

#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// The value of a factor's code: 2^(code - 127), or e4m3 without its sign; NaN for 255 and 127.
double Ue8m0Value(uint8_t code);
double Ue4m3Value(uint8_t code);

// Borrows the message. Factors that are missing are NaN, so that no product of theirs is right.
class BlockFactors {
 public:
  // `lines` rows of op(A), or columns of op(B). A message without a type: every factor is one.
  BlockFactors(const v1::BlockScale& blocks, int64_t lines, int64_t k);

  double At(int64_t batch, int64_t line, int64_t k) const;

 private:
  const v1::BlockScale& blocks_;
  int64_t line_blocks_ = 0;
  int64_t depth_blocks_ = 0;
  std::array<double, 256> values_ = {};  // By code.
};

}  // namespace gemmd
