// SPDX-License-Identifier: Apache-2.0
//
// Compares the errors of fp8 and f32 products on a GPU with those of cuBLASLt on the same operands.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/device.h"
#include "kernels/bench/gpu/library.h"
#include "kernels/bench/options.h"

namespace gemmd::bench {

// Multiplies 128 x 128 x k matrices of e4m3 and 2048 x 2048 x k matrices of f32, into f32, for k
// from 32 to 65,536 (f32: 16,384). Operands are uniform from 0 to 1, or normal; for e4m3 also with
// one element of 448 per row of A; for f32 also with exponents 24 apart, and in pairs whose
// products nearly cancel. Prints, and writes to `options.save`, the largest |D - exact| over the
// largest |exact|, where the exact D is that of f64. `cublaslt` may be null. Returns false if
// gemmd's default has a larger error than the library's. Errors: those of Device; Unavailable if
// the report cannot be written.
absl::StatusOr<bool> CompareErrors(const Options& options, Device& device, Library* cublaslt);

}  // namespace gemmd::bench
