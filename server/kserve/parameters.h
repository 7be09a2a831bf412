// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a request or of one of its tensors, each asked for once by name and kind.
#pragma once

#include <google/protobuf/map.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kserve/v2/inference.pb.h"

namespace gemmd {

class Parameters {
 public:
  using Map = google::protobuf::Map<std::string, inference::InferParameter>;

  // `field` names them: "inputs[0].parameters". Borrows both.
  Parameters(std::string_view field, const Map& map) : field_(field), map_(map) {}

  // What is asked for may be absent. A value is never empty where there is one. Errors:
  // InvalidArgument, another kind of value: "parameters.alpha: got a string, want a number".
  absl::StatusOr<std::optional<std::string>> Text(std::string_view name) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view name) const;
  absl::StatusOr<std::optional<int64_t>> Count(std::string_view name) const;  // 0 or more.
  absl::StatusOr<bool> Flag(std::string_view name) const;                     // Absent: false.

  // Errors: InvalidArgument a name that is none of these; Unimplemented one of shared memory, of
  // sequences or of classification.
  absl::Status CheckNames(std::initializer_list<std::string_view> known) const;

  std::string FieldOf(std::string_view name) const;

 private:
  const inference::InferParameter* Find(std::string_view name) const;
  absl::Status WrongKind(std::string_view name, const inference::InferParameter& value,
                         std::string_view want) const;

  const std::string_view field_;
  const Map& map_;
};

}  // namespace gemmd
