// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_command_line.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/load/live_metrics.h"
#include "client/load/live_view.h"
#include "client/load/load_flags.h"
#include "client/load/load_session.h"
#include "client/load/report/compare.h"
#include "client/load/report/report_files.h"
#include "client/terminal/text_file.h"
#include "client/terminal/usage.h"
#include "client/terminal/version.h"

namespace gemmd {
namespace {

constexpr char kFooter[] =
    "Latencies count from the time at which a call was due: calls that a stalled server delays\n"
    "are charged to it. Service times, which the report has too, count from the actual send.\n"
    "Ctrl-C ends a run with its report.\n\n"
    "Exit codes:\n"
    "  0  done, and every call was sent and answered; with --slo, a rate holds\n"
    "  1  calls failed or were never sent, there was none, or no rate holds\n"
    "  2  bad usage, or a local file that cannot be read or written\n"
    "  3  a server cannot be reached\n"
    "  4  verification failed: an answer is wrong, whichever step it was in\n"
    "  5  inconclusive, with --slo: the client is the limit, or windows contradict each other\n\n"
    "Examples:\n"
    "  gemmload --profile small --rate 2000 --duration 20 --html report.html\n"
    "  gemmload --concurrency 1,2,4,8 --shape 512,512,512 --type bf16 --json a.json\n"
    "  gemmload --profile llm-decode --rate 50 --arrivals poisson --seed 7\n"
    "  gemmload --slo p99=2ms\n"
    "  gemmload compare a.json b.json";

// What came of a session that has no report.
ExitCode CodeOf(const absl::Status& status) {
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    return ExitCode::kUnreachable;
  }
  return absl::IsCancelled(status) ? ExitCode::kRefused : ExitCode::kUsage;
}

ExitCode RunLoadCommand(const LoadFlags& flags, const Console& console, bool is_terminal,
                        const StopRequests& stop) {
  const auto plan = PlanSession(flags);
  if (!plan.ok()) return FailLocally(console, plan.status());
  if (absl::Status status = CheckReportFiles(flags, plan->mix); !status.ok())
    return FailLocally(console, status);
  std::unique_ptr<LiveMetrics> metrics;
  if (!flags.metrics_address.empty()) {
    auto served = LiveMetrics::Serve(flags.metrics_address);
    if (!served.ok()) return FailLocally(console, served.status());
    metrics = *std::move(served);
    absl::FPrintF(console.err, "metrics at http://%s/metrics\n", metrics->address());
    std::fflush(console.err);
  }
  LiveView view(flags.is_quiet ? nullptr : console.err, is_terminal);
  const auto report = RunSession(flags, *plan, stop, {view, metrics.get()});
  metrics.reset();
  if (!report.ok()) {
    console.PrintError(report.status());
    return CodeOf(report.status());
  }
  // The files come first: nobody may be there to read the text any more.
  const absl::Status written = WriteReportFiles(flags, *report, stop);
  console.Print(ReportText(*report));
  if (!written.ok()) return FailLocally(console, written);
  return ExitCodeOf(*report);
}

absl::StatusOr<ComparedReport> ReadReport(const std::string& path) {
  const auto text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  auto report = ParseReport(*text);
  if (report.ok()) return report;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", report.status().message()));
}

ExitCode RunCompare(const CompareFlags& flags, const Console& console) {
  const auto a = ReadReport(flags.a_path);
  if (!a.ok()) return FailLocally(console, a.status());
  const auto b = ReadReport(flags.b_path);
  if (!b.ok()) return FailLocally(console, b.status());
  const auto text = CompareText(*a, *b);
  if (!text.ok()) return FailLocally(console, text.status());
  console.Print(
      absl::StrCat("a  ", flags.a_path, "\nb  ", flags.b_path,
                   "\nintervals have 95 % confidence, by order statistics of all calls "
                   "and by the scatter over the run; figures differ where their intervals "
                   "do not overlap\n\n",
                   *text));
  return ExitCode::kOk;
}

}  // namespace

ExitCode ExitCodeOf(const LoadReport& report) {
  if (report.wrong() > 0) return ExitCode::kVerification;
  using End = SloAnswer::End;
  const End end = report.slo.has_value() ? report.slo->answer.end : End::kInterrupted;
  if (end == End::kClientLimit || end == End::kTooNoisy) return ExitCode::kInconclusive;
  // A search goes until calls fail.
  const bool is_good = report.slo.has_value()
                           ? report.slo->answer.rate > 0
                           : report.calls() > 0 && report.failed() == 0 && report.unsent() == 0;
  return is_good ? ExitCode::kOk : ExitCode::kRefused;
}

ExitCode RunGemmload(const std::vector<std::string>& arguments, const std::string& address,
                     const Console& console, bool is_terminal, const StopRequests& stop,
                     const SecurityFlags& security) {
  CLI::App app("Loads gemmd servers with matrix products and says what became of them", "gemmload");
  app.footer(kFooter);
  app.set_version_flag("--version", ToolVersionText("gemmload"));
  LoadFlags flags;
  flags.security = security;
  CompareFlags compare_flags;
  AddLoadFlags(app, flags);
  CLI::App& compare =
      *app.add_subcommand("compare", "Show how two reports differ, and how much of it is noise");
  AddCompareFlags(compare, compare_flags);
  // CLI11 takes the last argument first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    out << HelpAskedFor(app);
    if (out.str().empty() && app.exit(error, out, err) != 0)
      return FailLocally(console, absl::InvalidArgumentError(DescribeUsageError(app, error)));
    console.Print(out.str());
    return ExitCode::kOk;
  }
  if (compare.parsed()) return RunCompare(compare_flags, console);
  if (absl::Status status = CheckLoadFlags(app, flags); !status.ok())
    return FailLocally(console, status);
  if (flags.addresses.empty()) flags.addresses = absl::StrSplit(address, ',', absl::SkipEmpty());
  flags.command = absl::StrCat("gemmload ", absl::StrJoin(arguments, " "));
  return RunLoadCommand(flags, console, is_terminal, stop);
}

}  // namespace gemmd
