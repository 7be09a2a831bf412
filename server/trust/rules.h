// SPDX-License-Identifier: Apache-2.0
//
// Which callers may do what, as the file of --rules says:
//
//   {"identities": {
//     "batch":                {"may": ["multiply"], "priority": "low", "requests": 16},
//     "spiffe://corp/team/*": {"may": ["multiply", "tensors"], "devices": ["cpu"]},
//     "uid:0":                {"may": ["multiply", "tensors", "statistics", "administer"]}}}
//
// YAML may say the same. An identity that no rule names may do nothing.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/trust/identity.h"

namespace gemmd {

class Rules {
 public:
  static constexpr size_t kMostBytes = size_t{1} << 20;

  // Members of an identity: "may" (names of roles, required), "priority" ("normal" or "low"),
  // "share" (a number), "requests" and "bytes" (most inside at once), "device_seconds_a_minute",
  // "tensor_bytes", "device_tensor_bytes", "message_bytes", "devices" (names).
  // Errors: InvalidArgument: "rules: identities.batch.requests: got 0, want an integer from 1 to
  // 9007199254740992"; for what is no JSON or YAML, with its line.
  enum class Format { kJson, kYaml };
  static absl::StatusOr<Rules> Parse(std::string_view text, Format format = Format::kJson);

  // The grant of the name itself, otherwise of the longest pattern that it begins with; null where
  // no rule is for it.
  const Grant* Find(std::string_view name) const;

  size_t size() const { return exact_.size() + prefixes_.size(); }

 private:
  std::map<std::string, Grant, std::less<>> exact_;
  std::map<std::string, Grant, std::less<>> prefixes_;  // Patterns, without the asterisk.
};

}  // namespace gemmd
