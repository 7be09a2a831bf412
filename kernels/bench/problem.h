// SPDX-License-Identifier: Apache-2.0
//
// The problem that a row is timed with, on the CPU, in the simulator and on a GPU: its sizes, the
// orders of its matrices, the form of D; and parsing of lists of these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch = 1;  // Number of matrices.

  // 2*m*n*k of each matrix: multiplications and additions.
  double operations() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
           static_cast<double>(batch);
  }

  friend bool operator==(const Shape&, const Shape&) = default;
};

// "512x512x4096", "64*512x512x512".
std::string NameOf(const Shape& shape);

// "2048,512x512x4096,64*512,suite": cubes, m x n x k, batches of either, and the shapes of Suite();
// each once.
// Errors: InvalidArgument for the first part that is none of these.
absl::StatusOr<std::vector<Shape>> ParseShapes(std::string_view text);

// Cubes of 512 to 8192, few rows, small k, large k, and odd extents, for which no line is aligned.
std::vector<Shape> Suite();

// The orders of matrices. "rcr": A row major, B column major, D row major: lines of A and B run
// along k, as GPU kernels read them.
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

// The requested form of D, and what the product is multiplied by.
struct Output {
  std::optional<ElementType> type;  // Absent: the type of the row's instruction or accumulators.
  bool has_bias = false;            // One number for each column, of D's type.
  Activation activation = Activation::kNone;
  // Types of operands that rows of 16-bit floats dequantize; absent: the row's own.
  std::optional<ElementType> a_type = std::nullopt;
  std::optional<ElementType> b_type = std::nullopt;
  // Factors of blocks of A and of B; absent for none.
  std::optional<BlockScale> a_blocks;
  std::optional<BlockScale> b_blocks;

  friend bool operator==(const Output&, const Output&) = default;
};

// "bf16 bias relu"; empty for the defaults.
std::string NameOf(const Output& output);

// Sets bias and activation: "none", "bias", "relu", "bias-relu", "gelu-tanh" and so on. Errors:
// InvalidArgument.
absl::Status ParseEpilogue(std::string_view text, Output& output);

// Sets the blocks of A and B that have factors, rows or columns by elements along k:
// "1x128,128x128", or "none". Errors: InvalidArgument.
absl::Status ParseBlocks(std::string_view text, Output& output);

// Sets types and blocks of A and of B, each "none" or a type and perhaps its factors:
// "none,s4:f32:1x128". Errors: InvalidArgument.
absl::Status ParseQuantized(std::string_view text, Output& output);

// `leading_dimension_offset` elements lie between the lines of every dense matrix.
// Errors: InvalidArgument for sizes; Unimplemented if the row does not support the problem.
absl::StatusOr<Problem> MakeProblem(const Kernel& kernel, const Shape& shape, const Orders& orders,
                                    int64_t leading_dimension_offset = 0,
                                    const Output& output = {});

// Bytes of one matrix, including the last line's padding.
int64_t BytesOf(const MatrixLayout& layout);

}  // namespace gemmd::bench
