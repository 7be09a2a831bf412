// SPDX-License-Identifier: Apache-2.0
//
// Recomputes elements of D at the crossings of some rows and columns. Kernels of matrix
// instructions are recomputed by the simulator of the device's chip, exact kernels in integers,
// both bit for bit; all others are compared within their error bound. With any kernel, an element
// depends only on its row of A, its column of B and the epilogue's terms, so the rows and columns
// form a small separate product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/matrix/abort.h"
#include "kernels/problem.h"
#include "kernels/verify/sub_product.h"

namespace gemmd::verify {

// Source of random numbers. Faulty code must not be able to predict them: seed it from the system's
// randomness.
using Draw = std::mt19937_64;

// A computed product to check. Everything is borrowed. Matrices have the problem's layouts; spans
// of operands that are not read are empty.
struct CheckedProduct {
  const Kernel& kernel;  // The kernel that computed D,
  Target target;         // on this device.
  const Problem& problem;
  absl::Span<const std::byte> a;
  absl::Span<const std::byte> b;
  absl::Span<const std::byte> c;
  absl::Span<const std::byte> bias;
  absl::Span<const float> a_scale;
  absl::Span<const float> b_scale;
  absl::Span<const std::byte> d;
  AbortFlag abort = nullptr;                   // Once set, the check ends with Cancelled.
  absl::Span<const std::byte> a_factors = {};  // Block factors.
  absl::Span<const std::byte> b_factors = {};
};

// An element of D that is wrong.
struct WrongElement {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t column = 0;
  uint64_t got_bits = 0;
  uint64_t want_bits = 0;  // If a bound decides, the nearest correct value.
};

enum class CheckEnd : uint8_t { kPassed, kWrong, kNotVerified };

// The result of a check.
struct CheckResult {
  CheckEnd end = CheckEnd::kPassed;
  std::string_view reason;            // Why it is kNotVerified: "nonfinite", "undecided".
  int64_t elements_checked = 0;       // Elements recomputed or compared.
  int64_t wrong_elements = 0;         // Wrong elements among the checked ones.
  std::optional<WrongElement> wrong;  // The first wrong element.
  double miss_probability = 0;        // Probability that a single wrong element anywhere is missed.
  double cost = 0;                    // Operations of the check relative to the product's.
  double least_error = 0;  // For sums: miss_probability holds for errors above this. 0: for all.
  int64_t suspicions = 0;  // For sums: rows and columns recomputed.
};

// A check in progress, which its thread may leave after each slice for a more urgent one. Borrows
// what it was made of.
class SlicedCheck {
 public:
  virtual ~SlicedCheck() = default;

  // Does the next slice, which takes one thread about 0.1 s at most. Returns whether the check has
  // ended. Errors, which end it too: as Recompute.
  virtual absl::StatusOr<bool> Continue() = 0;

  // Complete once the check has ended.
  const CheckResult& result() const { return result_; }

 protected:
  CheckResult result_;
};

// Does all slices that are left.
absl::StatusOr<CheckResult> Complete(std::unique_ptr<SlicedCheck> check);

// One element of a dense matrix.
uint64_t BitsAt(const MatrixLayout& layout, const std::byte* matrix, int64_t row, int64_t column);

// The scale of a line: its own, or that of all lines.
inline double ScaleAt(absl::Span<const float> scales, size_t line) {
  return scales.empty() ? 1 : scales[scales.size() == 1 ? 0 : line];
}

// The maximum numbers of rows and of columns that are recomputed at once.
inline constexpr int64_t kMaxLines = 256;
// The same for a kernel and a depth: as many as one slice has time for.
int64_t LinesAtOnce(const Kernel& kernel, int64_t k);

// OK if the kernel's elements can be recomputed; otherwise Unimplemented.
absl::Status CanRecompute(const Kernel& kernel);

// Max additional memory of Recompute.
int64_t RecomputeBytes(const Problem& problem, int64_t rows, int64_t columns);

// Checks the elements of matrix `batch` where the rows and the columns cross, in blocks. Borrows
// the product.
class Recomputation {
 public:
  Recomputation(const CheckedProduct& product, int64_t batch, std::vector<int64_t> rows,
                std::vector<int64_t> columns)
      : product_(product), batch_(batch), rows_(std::move(rows)), columns_(std::move(columns)) {}

  // Multiplications for half of a slice. A slice ends after the block that exceeds them.
  static int64_t SliceOf(const Kernel& kernel);

  // Checks blocks until `left` multiplications are done, which it subtracts, and adds the findings
  // to `result`, except the cost. Returns whether no block is left. Errors: Cancelled if aborted;
  // ResourceExhausted if memory runs out.
  absl::StatusOr<bool> Continue(int64_t& left, CheckResult& result);

 private:
  const CheckedProduct& product_;
  const int64_t batch_;
  const std::vector<int64_t> rows_;
  const std::vector<int64_t> columns_;
  size_t row_ = 0;  // Of the next block.
  size_t column_ = 0;
};

// All blocks of a Recomputation.
absl::Status Recompute(const CheckedProduct& product, int64_t batch, Indices rows, Indices columns,
                       CheckResult& result);

}  // namespace gemmd::verify
