// SPDX-License-Identifier: Apache-2.0
//
// What a GPU is asked to compress: some lines of dense matrices in one block, into the portable
// sparse form (kernels/sparse24.h) in another one. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/compress_view.h"
#include "kernels/problem.h"

namespace gemmd {

struct CompressTask {
  MatrixLayout dense;  // Row major.
  MatrixLayout mask;   // b1 and row major; only where mask_block is not 0.
  int64_t matrices = 1;
  uint64_t dense_block = 0;
  uint64_t mask_block = 0;  // 0: the units of the largest magnitude are kept.
  uint64_t result_block = 0;
  int64_t first_line = 0;  // The lines of all matrices are counted on.
  int64_t end_line = 0;
};

// What a task reads and writes of its blocks.
struct CompressBytes {
  int64_t dense = 0;
  int64_t mask = 0;
  int64_t result = 0;
};

// Errors: InvalidArgument for a task that is none.
absl::StatusOr<CompressBytes> BytesOf(const CompressTask& task);

// A task that BytesOf takes, with its blocks at these addresses.
CompressView ViewOf(const CompressTask& task, const std::byte* dense, const std::byte* mask,
                    std::byte* result);

}  // namespace gemmd
