// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/parameters.h"

#include <algorithm>

#include "kernels/peer_text.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

using inference::InferParameter;

std::string_view KindOf(const InferParameter& value) {
  switch (value.parameter_choice_case()) {
    case InferParameter::kBoolParam: return "a bool";
    case InferParameter::kInt64Param: return "an int64";
    case InferParameter::kStringParam: return "a string";
    case InferParameter::kDoubleParam: return "a double";
    case InferParameter::kUint64Param: return "a uint64";
    default: return "no value";
  }
}

// What clients of other servers ask for by a name that means nothing here.
absl::Status CheckForeign(const std::string& field, std::string_view name) {
  if (name.starts_with("shared_memory_")) {
    return absl::UnimplementedError(
        GotWant(field, "a region",
                "none: no memory is shared with this server; send raw_input_contents, and keep "
                "weights on the server as a resident tensor"));
  }
  if (name.starts_with("sequence_")) {
    return absl::UnimplementedError(GotWant(field, "a sequence", "none: products have no state"));
  }
  if (name == "classification") {
    return absl::UnimplementedError(GotWant(field, "classes", "none: D is sent whole"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Parameters::FieldOf(std::string_view name) const { return Concat(field_, ".", name); }

const InferParameter* Parameters::Find(std::string_view name) const {
  const auto found = map_.find(std::string(name));
  return found == map_.end() ? nullptr : &found->second;
}

absl::Status Parameters::WrongKind(std::string_view name, const InferParameter& value,
                                   std::string_view want) const {
  return absl::InvalidArgumentError(GotWant(FieldOf(name), KindOf(value), want));
}

absl::StatusOr<std::optional<std::string>> Parameters::Text(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->parameter_choice_case() != InferParameter::kStringParam ||
      value->string_param().empty()) {
    return WrongKind(name, *value, "a string that is not empty");
  }
  return value->string_param();
}

absl::StatusOr<std::optional<double>> Parameters::Number(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  switch (value->parameter_choice_case()) {
    case InferParameter::kDoubleParam: return value->double_param();
    case InferParameter::kInt64Param: return static_cast<double>(value->int64_param());
    case InferParameter::kUint64Param: return static_cast<double>(value->uint64_param());
    default: return WrongKind(name, *value, "a number");
  }
}

absl::StatusOr<std::optional<int64_t>> Parameters::Count(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  switch (value->parameter_choice_case()) {
    case InferParameter::kInt64Param:
      if (value->int64_param() >= 0) return value->int64_param();
      return absl::InvalidArgumentError(
          GotWant(FieldOf(name), Concat(value->int64_param()), "at least 0"));
    case InferParameter::kUint64Param:
      return static_cast<int64_t>(std::min<uint64_t>(value->uint64_param(), INT64_MAX));
    default: return WrongKind(name, *value, "a whole number");
  }
}

absl::StatusOr<bool> Parameters::Flag(std::string_view name) const {
  const InferParameter* const value = Find(name);
  if (value == nullptr) return false;
  if (value->parameter_choice_case() == InferParameter::kBoolParam) return value->bool_param();
  return WrongKind(name, *value, "a bool");
}

absl::Status Parameters::CheckNames(std::initializer_list<std::string_view> known) const {
  for (const auto& [name, value] : map_) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (absl::Status status = CheckForeign(FieldOf(Shown(name)), name); !status.ok()) return status;
    std::string names;
    for (const std::string_view each : known) {
      names += names.empty() ? "" : ", ";
      names += each;
    }
    return absl::InvalidArgumentError(GotWant(field_, Concat("an unknown \"", Shown(name), "\""),
                                              names.empty() ? "none" : "one of " + names));
  }
  return absl::OkStatus();
}

}  // namespace gemmd
