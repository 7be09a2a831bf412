// SPDX-License-Identifier: Apache-2.0
//
// The operands of a job as a check of its answer reads them: each in one piece.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/abort.h"
#include "kernels/verify/checked_product.h"
#include "server/device/device.h"

namespace gemmd {

// The bytes of a source in one piece. Borrows them where they are in one piece already.
class FlatSource {
 public:
  explicit FlatSource(const Source& source);
  FlatSource(const FlatSource&) = delete;
  FlatSource& operator=(const FlatSource&) = delete;

  Piece bytes() const { return bytes_; }

 private:
  std::vector<std::byte> copy_;
  Piece bytes_;
};

// All operands of a job, which they may borrow from.
struct FlatOperands {
  explicit FlatOperands(const Job& job);

  FlatSource a;
  FlatSource b;
  FlatSource c;
  FlatSource bias;
  std::vector<float> a_scale;
  std::vector<float> b_scale;
  FlatSource a_factors;  // Factors of blocks; then there are no others.
  FlatSource b_factors;
};

// What a check is given: borrows the operands and `d`.
verify::CheckedProduct CheckedProductOf(const Job& job, const Kernel& kernel, const Target& target,
                                        const FlatOperands& operands, absl::Span<const std::byte> d,
                                        AbortFlag abort);

}  // namespace gemmd
