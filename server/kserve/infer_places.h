// SPDX-License-Identifier: Apache-2.0
//
// Which input of a request is which matrix of the product, and how errors name it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kserve/v2/inference.pb.h"

namespace gemmd {

enum class InferInput : uint8_t { kA, kB, kC, kBias, kAScale, kBScale };
inline constexpr size_t kInferInputs = 6;
std::string_view NameOf(InferInput input);  // "A_SCALE"

class InferPlaces {
 public:
  // Errors: InvalidArgument an unknown name, one that comes twice, no A; no B, or one beside that
  // of the model.
  static absl::StatusOr<InferPlaces> Find(const inference::ModelInferRequest& request,
                                          bool has_own_b);

  // The position among the request's inputs; none where it is not there.
  std::optional<int> At(InferInput input) const { return places_[static_cast<size_t>(input)]; }

  // "inputs[1]"; "model.B" for a B that the request does not bring.
  std::string FieldOf(InferInput input) const;

  void SetTyped() { is_typed_ = true; }

  // A refusal of the product, whose fields are those of gemmd.v1.MultiplyRequest, in the words of
  // this request. Others stay as they are.
  absl::Status Rename(const absl::Status& status) const;

 private:
  std::string NameOfOperand(InferInput operand, std::optional<InferInput> scale,
                            std::string_view member) const;
  std::optional<std::string> NameOfField(std::string_view field) const;

  std::array<std::optional<int>, kInferInputs> places_;
  bool is_typed_ = false;  // Elements came as numbers.
};

}  // namespace gemmd
