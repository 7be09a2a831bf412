// SPDX-License-Identifier: Apache-2.0
//
// Data of a benchmark: normal variates for floats, all values for integers; and a check of results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/direct.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

// Memory that starts on a page.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

// A, B and D of one product, tight.
struct Operands {
  Operands(const MatrixLayout& a_layout, const MatrixLayout& b_layout, const MatrixLayout& d_layout,
           int seed);

  AlignedBytes a;
  AlignedBytes b;
  AlignedBytes d;
};

// A and D row major, B of the given order; D of the kernel's accumulation type.
absl::StatusOr<Problem> MakeProblem(const Kernel& kernel, const Shape& shape, Order b_order);

// "ok" where a thousand elements of D, drawn at random, are as they should be: exact, or within the
// bound (k + 2) u sum |a b| of an f64 reference, u being the accumulation type's unit roundoff.
std::string Verify(const Kernel& kernel, const Problem& problem, const Operands& operands);

}  // namespace gemmd::bench
