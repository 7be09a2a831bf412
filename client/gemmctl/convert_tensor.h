// SPDX-License-Identifier: Apache-2.0
//
// One tensor as gemmctl convert makes it of another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/matrix/conversion.h"
#include "client/matrix/npy.h"
#include "gemmd/prepare.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// What is to become of a tensor.
struct TensorConversion {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;  // Unspecified: the input's.
  std::optional<v1::Order> order = {};                  // Absent: the input's.
  std::vector<int64_t> shape = {};                      // Empty: the input's.
  std::optional<ScalePer> scale = {};                   // Values are divided by factors.
  std::optional<Prune> pack24 = {};                     // The 2:4 form is made.
};

// A tensor by its name, of any number of dimensions. Borrows the bytes.
struct SourceTensor {
  std::string name = {};
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape = {};
  v1::Order order = v1::ORDER_ROW_MAJOR;
  absl::string_view data = {};  // Packed lines; of more than three dimensions, one packed line.
};

struct ConvertedTensor {
  NpyArray array = {};            // With all dimensions.
  ConversionCounts counts = {};   // Not counted where there are factors.
  std::vector<float> scale = {};  // Factors: for all, or for each row or column.
  bool is_packed24 = false;       // `array.data` is the 2:4 form, whose dense shape is the array's.
  int64_t dropped = 0;            // Nonzero elements that pruning left out.
};

// The type, shape and order that the conversion gives, without elements.
// Errors: InvalidArgument, naming the option, where it cannot be made.
absl::StatusOr<NpyArray> PlanConversion(const SourceTensor& input,
                                        const TensorConversion& conversion);

// Errors: those of PlanConversion, Quantize and Pack24.
absl::StatusOr<ConvertedTensor> ConvertTensor(const SourceTensor& input,
                                              const TensorConversion& conversion);

}  // namespace gemmd
