// SPDX-License-Identifier: Apache-2.0
//
// What a session of gemmload found, and its forms: text, JSON, CSV. The page is in html_report.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/load_run.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// The percentiles of every report.
struct ReportedPercentile {
  absl::string_view name;
  double fraction;
};
inline constexpr ReportedPercentile kPercentiles[] = {
    {"p50", 0.5},  {"p75", 0.75},    {"p90", 0.9},     {"p95", 0.95},
    {"p99", 0.99}, {"p99.5", 0.995}, {"p99.9", 0.999}, {"p99.99", 0.9999}};

struct ReportStep {
  std::string name;  // "2,000/s", "8 in flight"
  bool is_open = false;
  double target = 0;  // Calls per second, or calls in flight.
  StepResult result = {};
  VerifierCounts verified = {};
  std::vector<std::string> warnings = {};

  int64_t CheckedOf(size_t product) const;  // Answers that were checked.
};

// The search for the highest rate under an objective.
struct SloFindings {
  std::string objective;  // "p99=2ms"
  std::string rule;
  double rate = 0;  // The highest that held; 0 where none did.
  std::vector<std::string> trials;
};

struct LoadReport {
  std::string version;         // Of gemmload.
  std::string server_version;  // Empty: it did not say.
  std::string started;         // RFC 3339.
  std::string command;
  std::vector<std::string> addresses;
  int channels = 1;
  bool is_same_machine = false;
  std::string mix;  // The name of the profile or file.
  std::string arrivals;
  std::string operands;
  std::vector<std::string> products;
  double warmup_s = 0;
  std::vector<ReportStep> steps;
  std::optional<SloFindings> slo;

  bool was_interrupted() const;
  int64_t wrong() const;   // Answers that verification refused.
  int64_t failed() const;  // Calls.
};

// What a reader of a step must know before believing it.
std::vector<std::string> WarningsOf(const ReportStep& step, bool is_same_machine);

std::string ReportText(const LoadReport& report);
nlohmann::ordered_json ReportJson(const LoadReport& report);

// One line for each step, with a heading.
std::string ReportCsv(const LoadReport& report);

}  // namespace gemmd
