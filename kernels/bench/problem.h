// SPDX-License-Identifier: Apache-2.0
//
// The problem that a row is timed with, on the CPU, in the simulator and on a GPU.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/shape.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

// How matrices lie. "rcr": A row major, B column major, D row major: all lines along k, as the
// kernels of GPUs read them.
struct Orders {
  Order a = Order::kRowMajor;
  Order b = Order::kColumnMajor;
  Order d = Order::kRowMajor;

  friend bool operator==(const Orders&, const Orders&) = default;
};

std::string NameOf(const Orders& orders);

// All eight.
std::vector<Orders> AllOrders();

// "rcr,rrr", or "all" eight.
// Errors: InvalidArgument.
absl::StatusOr<std::vector<Orders>> ParseOrders(std::string_view text);

// What D is asked to be.
struct Output {
  std::optional<ElementType> type;  // Absent: that of the row's instruction or accumulators.
  bool has_bias = false;            // One number for each column, of D's type.
  bool has_relu = false;

  friend bool operator==(const Output&, const Output&) = default;
};

// "bf16 bias relu"; empty where nothing is asked for.
std::string NameOf(const Output& output);

// `leading_dimension_offset` elements lie between the lines of every dense matrix.
// Errors: InvalidArgument for sizes; Unimplemented where the row does not take such a problem.
absl::StatusOr<Problem> MakeProblem(const Kernel& kernel, const Shape& shape, const Orders& orders,
                                    int64_t leading_dimension_offset = 0,
                                    const Output& output = {});

// Bytes of one matrix, the last line's padding included.
int64_t BytesOf(const MatrixLayout& layout);

}  // namespace gemmd::bench
