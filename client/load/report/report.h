// SPDX-License-Identifier: Apache-2.0
//
// The results of a gemmload session as text, JSON and CSV, and the files for them. For the HTML
// page, see html_report.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/client_machine.h"
#include "client/load/load_command_line.h"
#include "client/load/mix.h"
#include "client/load/recorder.h"
#include "client/load/slo_search.h"
#include "client/load/verifier.h"
#include "client/terminal/text.h"
#include "gemmd/v1/registry.pb.h"
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
  SloAnswer answer = {};

  // "highest rate that holds: 123.4/s (95 % interval 118.0/s to 127.9/s)"
  std::string Verdict() const;
  // Reasons to doubt the verdict; `is_same_machine` is that of LoadReport.
  std::vector<std::string> Warnings(bool is_same_machine) const;
};

struct ReportedDevice {
  std::string name;  // "cpu"
  std::string text;  // "cpu: Intel Xeon, 16 threads"
};

struct ReportedServer {
  std::string address;
  std::string version = {};                  // Empty if not reported.
  std::vector<ReportedDevice> devices = {};  // Its default device, and those that answered calls.

  std::string Text() const;  // "127.0.0.1:8470 (gemmd 1.2.3)"
};
ReportedDevice DescribeDevice(const v1::Device& device);

struct LoadReport {
  std::string version;  // The version of gemmload.
  ClientMachine client = {};
  std::string started;  // RFC 3339.
  std::string command;
  std::vector<ReportedServer> servers;
  int channels = 1;
  int owners = 1;   // Clients of each server.
  int streams = 0;  // Streams per client; 0: unary calls.
  bool is_same_machine = false;
  std::string mix;  // The name of the profile or file.
  std::string arrivals;
  std::string operands;
  std::vector<std::string> products;
  std::string operation_unit = "FLOP/s";
  double warmup_s = 0;
  int64_t steps_planned = 0;  // 0 for a search.
  std::vector<ReportStep> steps;
  std::optional<SloFindings> slo;

  bool was_interrupted() const;
  int64_t wrong() const;  // Answers that failed verification.
  int64_t calls() const;
  int64_t failed() const;
  int64_t unsent() const;

  // The result in one line, and reasons to doubt it.
  std::string Verdict() const;
  std::vector<std::string> Warnings() const;
};

std::string ClientText(const LoadReport& report);  // "gemmload 1.2.3 on host, Intel Xeon, 2 cores"

// The unit of a mix's operation rate: "FLOP/s", or "OP/s" for integers. A 2:4 product counts as the
// equivalent dense product, and the unit says so.
std::string OperationUnit(const Mix& mix);

// Reasons to doubt the result of a step.
std::vector<std::string> WarningsOf(const ReportStep& step, bool is_same_machine);

std::string ReportText(const LoadReport& report);
nlohmann::ordered_json ReportJson(const LoadReport& report);

// One line for each step, with a heading.
std::string ReportCsv(const LoadReport& report);

std::string RoundedTime(double ns);  // Rounded to whole nanoseconds.

TextTable LatencyTable(const ReportStep& step);  // Both clocks, with the number of slower calls.
TextTable StageTable(const ReportStep& step);
TextTable KernelTable(const ReportStep& step);  // Mean stage times per kernel and device.
TextTable ProductTable(const LoadReport& report, const ReportStep& step);
TextTable WindowTable(const SloFindings& slo);

// Checks that each file can be written, and that none is also another output or an input of the
// load. Called before a long run; changes no file. Errors: InvalidArgument, PermissionDenied.
absl::Status CheckReportFiles(const LoadFlags& flags, const Mix& mix);

// Writes as many of the files as possible. After a stop request, does not wait for the reader of a
// pipe. Errors: PermissionDenied, for the first file that could not be written.
absl::Status WriteReportFiles(const LoadFlags& flags, const LoadReport& report,
                              const StopRequests& stop);

}  // namespace gemmd
