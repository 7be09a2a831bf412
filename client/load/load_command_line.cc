// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_command_line.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/load/compare.h"
#include "client/load/html_report.h"
#include "client/load/live_view.h"
#include "client/load/load_flags.h"
#include "client/load/load_session.h"

namespace gemmd {
namespace {

constexpr char kFooter[] =
    "Latencies count from the time at which a call was due, beside those from its actual send: "
    "what\n"
    "a stalled server keeps from being sent is charged to it. Ctrl-C ends a run with its "
    "report.\n\n"
    "Exit codes:\n"
    "  0  done, and every call was answered\n"
    "  1  calls failed\n"
    "  2  bad usage, or a local file that cannot be read or written\n"
    "  3  a server cannot be reached\n"
    "  4  verification failed: an answer is wrong\n\n"
    "Examples:\n"
    "  gemmload --profile small --rate 2000 --duration 20 --html report.html\n"
    "  gemmload --concurrency 1,2,4,8 --shape 512,512,512 --type bf16 --json a.json\n"
    "  gemmload --profile llm-decode --rate 50 --arrivals poisson --seed 7\n"
    "  gemmload --slo p99=2ms\n"
    "  gemmload compare a.json b.json";

ExitCode Fail(const Console& console, const absl::Status& status, ExitCode code) {
  const std::string text = absl::StrCat("gemmload: ", absl::StatusCodeToString(status.code()), ": ",
                                        status.message(), "\n");
  std::fwrite(text.data(), 1, text.size(), console.err);
  return code;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
}

// Known before a long run, not behind it.
absl::Status CheckWritable(const LoadFlags& flags) {
  absl::Status status = WriteText(flags.json_path, "");
  status.Update(WriteText(flags.csv_path, ""));
  status.Update(WriteText(flags.html_path, ""));
  return status;
}

absl::Status WriteReports(const LoadFlags& flags, const LoadReport& report) {
  // A mix or a server may hold text that is not UTF-8.
  const std::string json =
      ReportJson(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
  absl::Status status = WriteText(flags.json_path, json + "\n");
  status.Update(WriteText(flags.csv_path, ReportCsv(report)));
  status.Update(WriteText(flags.html_path, ReportHtml(report)));
  return status;
}

ExitCode RunLoadCommand(const LoadFlags& flags, const Console& console, bool is_terminal,
                        const StopRequests& stop) {
  if (absl::Status status = CheckWritable(flags); !status.ok())
    return Fail(console, status, ExitCode::kUsage);
  LiveView view(flags.is_quiet ? nullptr : console.err, is_terminal);
  const auto report = RunSession(flags, stop, view);
  if (!report.ok()) {
    const bool is_unreachable =
        absl::IsUnavailable(report.status()) || absl::IsDeadlineExceeded(report.status());
    return Fail(console, report.status(),
                is_unreachable ? ExitCode::kUnreachable : ExitCode::kUsage);
  }
  console.Print(ReportText(*report));
  if (absl::Status status = WriteReports(flags, *report); !status.ok())
    return Fail(console, status, ExitCode::kUsage);
  if (report->wrong() > 0) return ExitCode::kVerification;
  // A search goes until calls fail.
  return report->failed() > 0 && !report->slo.has_value() ? ExitCode::kRefused : ExitCode::kOk;
}

absl::StatusOr<std::vector<ComparedStep>> ReadReport(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  auto steps = ParseReport(text.str());
  if (steps.ok()) return steps;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", steps.status().message()));
}

ExitCode RunCompare(const CompareFlags& flags, const Console& console) {
  const auto a = ReadReport(flags.a_path);
  if (!a.ok()) return Fail(console, a.status(), ExitCode::kUsage);
  const auto b = ReadReport(flags.b_path);
  if (!b.ok()) return Fail(console, b.status(), ExitCode::kUsage);
  const auto text = CompareText(*a, *b);
  if (!text.ok()) return Fail(console, text.status(), ExitCode::kUsage);
  console.Print(absl::StrCat("a  ", flags.a_path, "\nb  ", flags.b_path,
                             "\nnoise: 95 % confidence, from the number of calls and from the "
                             "scatter of the intervals\n\n",
                             *text));
  return ExitCode::kOk;
}

}  // namespace

ExitCode RunGemmload(const std::vector<std::string>& arguments, const std::string& address,
                     const Console& console, bool is_terminal, const StopRequests& stop) {
  CLI::App app("Loads gemmd servers with matrix products and says what became of them", "gemmload");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("gemmload ") + GEMMD_VERSION);
  LoadFlags flags;
  CompareFlags compare_flags;
  AddLoadFlags(app, flags);
  CLI::App& compare =
      *app.add_subcommand("compare", "Show how two reports differ, and how much of it is noise");
  AddCompareFlags(compare, compare_flags);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // As CLI11 wants them.
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    if (app.exit(error, out, err) != 0)
      return Fail(console, absl::InvalidArgumentError(error.what()), ExitCode::kUsage);
    console.Print(out.str());
    return ExitCode::kOk;
  }
  if (compare.parsed()) return RunCompare(compare_flags, console);
  if (flags.addresses.empty()) flags.addresses.push_back(address);
  flags.command = absl::StrCat("gemmload ", absl::StrJoin(arguments, " "));
  return RunLoadCommand(flags, console, is_terminal, stop);
}

}  // namespace gemmd
