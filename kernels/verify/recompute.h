// SPDX-License-Identifier: Apache-2.0
//
// Elements of D computed again: those where some rows and some columns cross. Kernels of matrix
// instructions are computed by the simulator of the device's chip and exact ones in integers, both
// to the bit; all others are held against their bound.
//
// An element of a row of any kernel is the same whatever product it is an element of, as long as
// its row of A, its column of B and what the epilogue adds are the same: so the rows and columns
// make a small product of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/matrix/abort.h"
#include "kernels/problem.h"

namespace gemmd::verify {

// Where random numbers come from. Whoever computes D must not know them beforehand: seed it from
// the system's randomness.
using Draw = std::mt19937_64;

// A product that was computed and is to be checked. Everything is borrowed. Matrices lie as the
// problem's layouts say; spans of operands that the problem does not read are empty.
struct CheckedProduct {
  const Kernel& kernel;  // That computed D,
  Target target;         // on this device.
  const Problem& problem;
  absl::Span<const std::byte> a;
  absl::Span<const std::byte> b;
  absl::Span<const std::byte> c;
  absl::Span<const std::byte> bias;
  absl::Span<const float> a_scale;
  absl::Span<const float> b_scale;
  absl::Span<const std::byte> d;
  AbortFlag abort = nullptr;                   // Once it is set, the check ends with Cancelled.
  absl::Span<const std::byte> a_factors = {};  // Those of blocks.
  absl::Span<const std::byte> b_factors = {};
};

// An element of D that is wrong.
struct WrongElement {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t column = 0;
  uint64_t got_bits = 0;
  uint64_t want_bits = 0;  // Where a bound decides, the nearest that is right.
};

enum class CheckEnd : uint8_t { kPassed, kWrong, kNotVerified };

// What a check comes to.
struct CheckResult {
  CheckEnd end = CheckEnd::kPassed;
  std::string_view reason;            // Why it is kNotVerified: "nonfinite", "undecided".
  int64_t elements_checked = 0;       // Elements that were computed again or compared.
  int64_t wrong_elements = 0;         // Among those.
  std::optional<WrongElement> wrong;  // The first of them.
  double miss_probability = 0;        // That one wrong element, wherever it is, is not seen.
  double cost = 0;                    // Operations of the check over those of the product.
  double least_error = 0;  // For sums: miss_probability holds for errors above this. 0: for all.
  int64_t suspicions = 0;  // For sums: rows and columns that were computed again.
};

using Indices = absl::Span<const int64_t>;

// Rows or columns of a matrix, taken out of it into one of their own without gaps.
struct GatheredMatrix {
  MatrixLayout layout;
  std::vector<std::byte> bytes;
};

// The rows of a matrix, dense or sparse, row by row, or the columns of a dense one, column by
// column. `matrix` is the first byte of it.
GatheredMatrix GatherRows(const MatrixLayout& layout, const std::byte* matrix, Indices rows);
GatheredMatrix GatherColumns(const MatrixLayout& layout, const std::byte* matrix, Indices columns);

// One element of a dense matrix.
uint64_t BitsAt(const MatrixLayout& layout, const std::byte* matrix, int64_t row, int64_t column);

// The elements of a packed vector, as they are.
std::vector<std::byte> GatherVector(ElementType type, const std::byte* vector, Indices indices);

// OK where elements of the kernel's can be computed again; otherwise Unimplemented.
absl::Status CanRecompute(const Kernel& kernel);

// Bytes that Recompute takes beside what it is given, at most.
int64_t RecomputeBytes(const Problem& problem, int64_t rows, int64_t columns);

// Checks the elements of matrix `batch` where the rows and the columns cross and adds what it finds
// to `result`, the cost excepted. Blocks of them at a time, whatever their count is.
// Errors: Cancelled where it was aborted; ResourceExhausted where memory ran out.
absl::Status Recompute(const CheckedProduct& product, int64_t batch, Indices rows, Indices columns,
                       CheckResult& result);

}  // namespace gemmd::verify
