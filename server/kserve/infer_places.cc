// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_places.h"

#include <algorithm>
#include <utility>

#include "kernels/peer_text.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr std::array<std::string_view, kInferInputs> kNames = {"A",    "B",       "C",
                                                               "BIAS", "A_SCALE", "B_SCALE"};

// Fields of a product that are parameters here, under the names that they have there or other ones.
constexpr std::pair<std::string_view, std::string_view> kParameters[] = {
    {"alpha", "alpha"},
    {"beta", "beta"},
    {"activation", "activation"},
    {"bias.axis", "bias_axis"},
    {"bit_operation", "bit_operation"},
    {"accumulation_type", "accumulation_type"},
    {"d.type", "output_type"},
    {"kernel", "kernel"},
    {"device", "device"},
    {"priority", "priority"},
};

std::string WantedNames(bool has_own_b) {
  return has_own_b ? "one of A, C, BIAS, A_SCALE: the model has its own B"
                   : "one of A, B, C, BIAS, A_SCALE, B_SCALE";
}

}  // namespace

std::string_view NameOf(InferInput input) { return kNames[static_cast<size_t>(input)]; }

absl::StatusOr<InferPlaces> InferPlaces::Find(const inference::ModelInferRequest& request,
                                              bool has_own_b) {
  InferPlaces places;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const std::string& name = request.inputs(i).name();
    const auto known = std::find(kNames.begin(), kNames.end(), name);
    if (known == kNames.end() || (has_own_b && name.starts_with('B') && name != "BIAS")) {
      return absl::InvalidArgumentError(GotWant(Concat("inputs[", i, "].name"),
                                                name.empty() ? "none" : Shown(name),
                                                WantedNames(has_own_b)));
    }
    std::optional<int>& place = places.places_[static_cast<size_t>(known - kNames.begin())];
    if (place.has_value()) {
      return absl::InvalidArgumentError(
          GotWant(Concat("inputs[", i, "].name"), name, Concat("that of input ", *place, " once")));
    }
    place = i;
  }
  for (const InferInput input : {InferInput::kA, InferInput::kB}) {
    if (places.At(input) || (input == InferInput::kB && has_own_b)) continue;
    return absl::InvalidArgumentError(
        GotWant("inputs", Concat("no ", NameOf(input)), has_own_b ? "A" : "A and B"));
  }
  return places;
}

std::string InferPlaces::FieldOf(InferInput input) const {
  const std::optional<int> place = At(input);
  return place ? Concat("inputs[", *place, "]") : Concat("model.", NameOf(input));
}

// What stands for "a.data", "a.type" and so on.
std::string InferPlaces::NameOfOperand(InferInput operand, std::optional<InferInput> scale,
                                       std::string_view member) const {
  const std::optional<int> place = At(operand);
  if (scale && member.starts_with(".scale")) return FieldOf(*scale) + ".shape";
  if (!place && operand != InferInput::kB) return Concat("inputs.", NameOf(operand));
  if (member == ".data" && place) {
    return is_typed_ ? Concat("inputs[", *place, "].contents")
                     : Concat("raw_input_contents[", *place, "]");
  }
  if (member == ".type") return FieldOf(operand) + ".datatype";
  return member.starts_with(".tensor") ? "model" : FieldOf(operand);
}

std::optional<std::string> InferPlaces::NameOfField(std::string_view field) const {
  for (const auto& [product, parameter] : kParameters) {
    if (field == product) return Concat("parameters.", parameter);
  }
  if (field == "request_id") return "id";
  if (field == "m" || field == "k" || field == "batch") return FieldOf(InferInput::kA) + ".shape";
  if (field == "n") return FieldOf(InferInput::kB) + ".shape";
  if (field == "m, n, k") return "inputs";
  const std::string_view matrix = field.substr(0, field.find('.'));
  const std::string_view member = field.substr(matrix.size());
  if (matrix == "a") return NameOfOperand(InferInput::kA, InferInput::kAScale, member);
  if (matrix == "b") return NameOfOperand(InferInput::kB, InferInput::kBScale, member);
  if (matrix == "c") return NameOfOperand(InferInput::kC, std::nullopt, member);
  if (matrix == "bias") return NameOfOperand(InferInput::kBias, std::nullopt, member);
  if (matrix == "d") return "outputs[0]";
  return std::nullopt;
}

absl::Status InferPlaces::Rename(const absl::Status& status) const {
  const std::string_view text(status.message().data(), status.message().size());
  const size_t end = text.find(": ");
  if (status.ok() || end == std::string_view::npos) return status;
  const std::optional<std::string> name = NameOfField(text.substr(0, end));
  if (!name) return status;
  absl::Status renamed(status.code(), Concat(*name, text.substr(end)));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { renamed.SetPayload(url, payload); });
  return renamed;
}

}  // namespace gemmd
