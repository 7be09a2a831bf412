// SPDX-License-Identifier: Apache-2.0
//
// What `gemmctl doctor` found, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace gemmd {

enum class CheckState { kOk, kWarn, kFail };
absl::string_view CheckStateName(CheckState state);  // "ok", "warn", "fail".

// One thing that was looked at.
struct Check {
  std::string name;  // "canary cuda:0".
  CheckState state = CheckState::kOk;
  std::string seen;
  std::string advice = {};  // What to do; empty where there is nothing to do.
};

bool HasFailure(const std::vector<Check>& checks);

std::string DoctorText(const std::vector<Check>& checks);
nlohmann::ordered_json DoctorJson(const std::vector<Check>& checks);

}  // namespace gemmd
