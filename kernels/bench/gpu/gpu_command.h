// SPDX-License-Identifier: Apache-2.0
//
// gemmbench on a GPU, as its options say.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/bench/gpu/gpu_problem.h"
#include "kernels/bench/shape.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

struct GpuOptions {
  int device = 0;
  std::vector<const Kernel*> rows;
  std::vector<Shape> shapes;
  std::vector<Orders> orders = {Orders()};
  int64_t leading_dimension_offset = 0;
  double seconds = 2;
  int min_samples = 5;
  bool uses_libraries = true;
  std::string cublaslt;    // Path; empty: where the loader finds it.
  std::string cusparselt;  // The same.
  std::string csv;         // Files to write; empty: none.
  std::string json;        // - is the output, in place of the table.
  std::string save;
  std::string commit;
  std::string command;
  bool shows_progress = false;
};

// Measures, prints, writes files. False where a result was wrong or a row failed.
// Errors: FailedPrecondition where there is no such GPU; Internal where it failed, after what was
// measured until then has been written.
absl::StatusOr<bool> RunOnGpu(const GpuOptions& options);

}  // namespace gemmd::bench
