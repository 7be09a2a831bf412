// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/doctor_report.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

int64_t Count(const std::vector<Check>& checks, CheckState state) {
  return std::count_if(checks.begin(), checks.end(),
                       [state](const Check& check) { return check.state == state; });
}

}  // namespace

absl::string_view CheckStateName(CheckState state) {
  switch (state) {
    case CheckState::kOk: return "ok";
    case CheckState::kWarn: return "warn";
    case CheckState::kFail: return "fail";
  }
  return "";
}

bool HasFailure(const std::vector<Check>& checks) { return Count(checks, CheckState::kFail) > 0; }

std::string DoctorText(const std::vector<Check>& checks) {
  TextTable table({{"check"}, {"state"}, {"seen"}});
  std::string advice;
  for (const Check& check : checks) {
    table.AddRow({check.name, std::string(CheckStateName(check.state)), check.seen});
    if (check.advice.empty()) continue;
    absl::StrAppend(&advice, check.name, ": ", check.advice, "\n");
  }
  return absl::StrCat(table.Print(), advice.empty() ? "" : "\nWhat to do:\n", advice, "\n",
                      checks.size(), " checks: ", Count(checks, CheckState::kOk), " ok, ",
                      Count(checks, CheckState::kWarn), " warn, ", Count(checks, CheckState::kFail),
                      " fail\n");
}

nlohmann::ordered_json DoctorJson(const std::vector<Check>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"state", std::string(CheckStateName(check.state))},
                    {"seen", check.seen},
                    {"advice", check.advice}});
  }
  return {{"checks", list},
          {"ok", Count(checks, CheckState::kOk)},
          {"warn", Count(checks, CheckState::kWarn)},
          {"fail", Count(checks, CheckState::kFail)}};
}

}  // namespace gemmd
