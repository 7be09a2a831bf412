// SPDX-License-Identifier: Apache-2.0
//
// Checks kernels of a GPU against the simulator, case by case, on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "tests/gpu/kernel_runner.h"

namespace gemmd {

struct CheckOptions {
  mma::Chip chip = mma::Chip::kSm90;
  std::vector<uint64_t> seeds = {1, 2, 3};
  std::string filter = "*";  // A pattern of the shell for the kernels' names.
  std::optional<size_t> only_case;
  bool is_quick = false;
  int threads = 1;
  int64_t seconds = 0;  // No case begins after this time; 0 sets no limit.
};

struct Failure {
  std::string product;  // The product.
  std::string what;     // What was wrong: the first wrong element, or an error.
  uint64_t seed = 0;
  size_t case_index = 0;
};

struct RowResult {
  const Kernel* kernel = nullptr;
  bool has_code = true;
  int64_t cases = 0;
  int64_t shapes = 0;  // Different m x n x k.
  int64_t products = 0;
  int64_t elements = 0;
  int64_t mismatches = 0;
  int64_t errors = 0;  // Cases that did not run.
  std::optional<Failure> first;

  bool passed() const { return has_code && cases > 0 && mismatches == 0 && errors == 0; }
};

struct CheckResult {
  CheckOptions options;
  std::vector<RowResult> rows;  // The rows that pass the filter and that the chip has, in order.
  // Instructions of mma, mma.sp and wmma that the chip has, and those of them that no passing row
  // covers.
  std::vector<const mma::Instruction*> instructions;
  std::vector<const mma::Instruction*> not_covered;
  size_t cases_left = 0;    // Not run, for lack of time or of a GPU that works.
  bool is_aborted = false;  // Nothing could run any more.
  double seconds = 0;

  // Whether every row of the filter passed; without a filter, every instruction too.
  bool passed() const;
};

// Called once on each thread.
using MakeRunner = std::function<absl::StatusOr<std::unique_ptr<KernelRunner>>()>;

// Errors: NotFound where no row passes the filter; those of MakeRunner.
absl::StatusOr<CheckResult> CheckRows(const CheckOptions& options, const MakeRunner& make_runner);

}  // namespace gemmd
