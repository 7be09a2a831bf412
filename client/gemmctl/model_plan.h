// SPDX-License-Identifier: Apache-2.0
//
// The layers of a model, and what each would cost in every type that its weights could have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/matrix/safetensors.h"
#include "gemmd/product.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// One type for the weights and the activations of a layer.
struct LayerType {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  // Root mean square of what the weights change by, over that of the weights; NaN where they have
  // no finite values in the type.
  double error = 0;
  std::string device = {};
  std::string kernel = {};  // Empty: none can run it.
  int64_t predicted_ns = 0;
};

// A matrix of the file, N x K: the weights of K inputs and N outputs.
struct ModelLayer {
  std::string name = {};
  v1::ElementType file_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::vector<LayerType> types = {};  // In the order in which they were asked for.
  int best = -1;  // The fastest one whose error is small enough; -1: there is none.
};

struct ModelPlan {
  std::vector<ModelLayer> layers = {};
  int64_t others = 0;  // Tensors that are no matrices of floating-point numbers.
};

// How the server would multiply m x K activations by the transposed N x K weights.
// Errors: Unimplemented where no kernel can.
using ExplainLayer = absl::FunctionRef<absl::StatusOr<v1::ExplainResponse>(
    v1::ElementType type, int64_t outputs, int64_t inputs)>;

// What rounding (16 bits and more) or scaling row by row (8 bits) changes the values of a row-major
// matrix by, as LayerType.error says. Takes memory for a part of the matrix alone.
// Errors: InvalidArgument where the bytes do not fit the shape.
absl::StatusOr<double> WeightError(const MatrixView& weights, v1::ElementType type);

// Each shape is explained once. Errors: of a file that makes no sense, and all of `explain` but
// Unimplemented.
absl::StatusOr<ModelPlan> PlanModel(const MappedSafetensors& file,
                                    const std::vector<v1::ElementType>& types, double most_error,
                                    ExplainLayer explain);

}  // namespace gemmd
