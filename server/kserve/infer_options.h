// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a ModelInferRequest as the options of a product.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "kserve/v2/inference.pb.h"

namespace gemmd {

struct InferOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool transpose_c = false;
  bool has_beta = false;
  v1::BiasAxis bias_axis = v1::BIAS_AXIS_COLUMNS;
  int64_t timeout_ns = 0;  // 0: none.
};

// Writes what it can into the product, and returns the rest. Errors: InvalidArgument:
// "parameters.alpha: got a string, want a number".
absl::StatusOr<InferOptions> ReadOptions(const inference::ModelInferRequest& request,
                                         v1::MultiplyRequest& product);

}  // namespace gemmd
