// SPDX-License-Identifier: Apache-2.0
//
// How the server would run a product, or each layer of a model, for people and for programs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// The device, the kernels that can run the product with their predicted times, and why the rest
// cannot. Unless `is_complete`, shows only the first candidates, and one line per reason of
// refusal.
std::string ExplanationTable(const v1::MultiplyRequest& request,
                             const v1::ExplainResponse& explanation, bool is_complete);

// The error of converting a row-major matrix to `type` by rounding (16 bits and more) or row-by-row
// scaling (8 bits): the root mean square of the changes relative to that of the values; NaN if the
// values have no finite ones in the type. Uses memory for only a part of the matrix. Errors:
// InvalidArgument if the bytes do not fit the shape.
absl::StatusOr<double> WeightError(const MatrixView& weights, v1::ElementType type);

}  // namespace gemmd
