// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/load/live_view.h"
#include "client/load/load_session.h"
#include "client/load/mix.h"
#include "client/load/payload.h"
#include "client/load/report/compare.h"
#include "client/load/report/report.h"
#include "client/output_file.h"
#include "client/terminal/version.h"
#include "kernels/matrix/status.h"
#include "kernels/option/option.h"

namespace gemmd {
namespace {

// Parses a place, files or both, in any order.
absl::Status TakeOperands(const std::string& text, LoadFlags& flags) {
  std::vector<std::string> files;
  std::vector<std::string> places;
  for (std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (absl::EndsWith(part, ".npy")) {
      files.push_back(std::move(part));
    } else if (FindOperandPlace(part) != nullptr) {
      places.push_back(std::move(part));
    } else {
      std::vector<absl::string_view> known;
      for (const OperandPlace& place : OperandPlaces()) known.push_back(place.name);
      return absl::InvalidArgumentError(absl::StrCat(
          "got ", part, ", want ", absl::StrJoin(known, ", "), " or the path of a .npy file"));
    }
  }
  if (places.size() > 1 || files.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", text, ", want at most one place and two files"));
  }
  // --a and --b were taken before.
  if ((files.size() == 2 && !flags.a_path.empty()) || (!files.empty() && !flags.b_path.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", text, " beside --a or --b, want each operand once"));
  }
  if (!places.empty()) flags.operands = places[0];
  if (files.size() == 2) flags.a_path = files[0];
  if (!files.empty()) flags.b_path = files.back();
  return absl::OkStatus();
}

void AddProductOptions(CLI::App& app, LoadFlags& flags) {
  SetGroup(app, "What is multiplied");
  std::string profiles = "A built-in mix (default small):";
  std::vector<std::string> names;
  for (const Profile& profile : Profiles()) {
    names.emplace_back(profile.name);
    absl::StrAppend(&profiles, "\n", profile.name, ": ", profile.what);
  }
  const CommandOption profile =
      AddOption(app, "--profile", flags.profile, profiles).Check(OneOf(names)).TypeName("NAME");
  const CommandOption mix =
      AddOption(app, "--mix", flags.mix_path,
                "JSON file of products: an array of objects with m, n, k and, optionally, type, "
                "weight, batch, sparse, b_order, kernel, device, accumulation_type, output_type, "
                "fast_accumulation, operands, a, b (paths of .npy files), name")
          .TypeName("PATH")
          .Exclude(profile);
  const CommandOption shape = AddShape(app, "--shape", flags.shape, "One product: m,n,k or mxnxk",
                                       {.min_extents = 3, .min = 1, .max = 2147483647})
                                  .TypeName("M,N,K")
                                  .Exclude(profile)
                                  .Exclude(mix);
  AddTypeOption(app, "--type", flags.type,
                "Type of A and B, with --shape, --a or --b (default: that of the files, or f32)");
  for (const bool is_a : {true, false}) {
    AddOption(app, is_a ? "--a" : "--b", is_a ? flags.a_path : flags.b_path,
              absl::StrCat(is_a ? "A" : "B",
                           " from a .npy file instead of random values; "
                           "without --shape, both operands come from files. Answers are "
                           "checked within a bound"))
        .TypeName("PATH")
        .Exclude(profile)
        .Exclude(mix);
  }
  AddTypeOption(app, "--output-type", flags.output_type, "Type of D, with --shape").Need(shape);
  AddFlag(app, "--fast-accumulation", flags.fast_accumulation,
          "Let the tensor core sum 8-bit floats with the few bits that it keeps, with --shape")
      .Need(shape);
  AddOption(app, "--batch", flags.batch, "Number of products in a call, with --shape", 1,
            2147483647)
      .TypeName("N")
      .Need(shape);
  AddFlag(app, "--sparse", flags.sparse, "Send A in its 2:4 form, with --shape").Need(shape);
  AddChoice(app, "--b-order", flags.b_order,
            "Order of B, with --shape: row major, or column major, as is common for weights in x "
            "W^T",
            {"row", "column"})
      .ShowDefault()
      .Need(shape);
  AddOption(app, "--kernel", flags.kernel, "Kernel for products without one").TypeName("NAME");
  AddOption(app, "--device", flags.device, "Device for products without one").TypeName("NAME");
  std::string modes = "Place of the operands:";
  for (const OperandPlace& mode : OperandPlaces()) {
    absl::StrAppend(&modes, " ", mode.name, " (", mode.what, ")");
  }
  absl::StrAppend(&modes,
                  "; or .npy files as --a and --b take them: A and B, or B alone; or both, as in "
                  "resident,b.npy");
  app.add_option_function<std::string>(
         "--operands",
         [&flags](const std::string& text) {
           const absl::Status status = TakeOperands(text, flags);
           if (!status.ok())
             throw CLI::ValidationError("--operands", std::string(status.message()));
         },
         modes)
      ->type_name("PLACE|FILE,...");
  AddChoice(app, "--values", flags.values,
            "Values of the operands: integers, whose products are checked exactly, or normal "
            "(random), checked within a bound",
            {"integers", "normal"})
      .ShowDefault();
  AddOption(app, "--verify", flags.verified_share,
            "Share of answers to check, in addition to the first answer of each product; 0 "
            "checks none",
            0, 1)
      .TypeName("SHARE")
      .ShowDefault();
}

void AddLoopOptions(CLI::App& app, LoadFlags& flags) {
  SetGroup(app, "Load");
  const CommandOption concurrency(app.add_option("--concurrency", flags.concurrency,
                                                 "Closed loop: number of calls in flight; several "
                                                 "numbers run one after the other (default: 1)")
                                      ->delimiter(',')
                                      ->transform(option::NumberFrom(1, 100000).description(""))
                                      ->type_name("N,..."));
  const CommandOption rate =
      CommandOption(app.add_option("--rate", flags.rates,
                                   "Open loop: calls per second, sent on time regardless of the "
                                   "server; several rates run one after the other")
                        ->delimiter(',')
                        ->transform(option::NumberFrom(0.001, 1e7).description(""))
                        ->type_name("R,..."))
          .Exclude(concurrency);
  CommandOption arrivals =
      AddChoice(app, "--arrivals", flags.arrivals,
                "Open loop: calls evenly spaced, or independent (Poisson)", {"constant", "poisson"})
          .ShowDefault();
  AddOption(app, "--ramp-to", flags.ramp_to,
            "Open loop: the rate changes linearly from --rate at the start of the warm-up to this "
            "rate at the end of --duration",
            0.001, 1e7)
      .TypeName("R")
      .Need(rate);
  const CommandOption replay =
      AddOption(app, "--replay", flags.replay_path,
                "Open loop: take the gaps between calls from a file, repeated; one gap per line, "
                "in seconds or as 500us")
          .TypeName("PATH")
          .Exclude(concurrency)
          .Exclude(rate);
  AddOption(app, "--slo", flags.slo,
            "Search for the highest rate under an objective such as p99=2ms, beginning with --rate "
            "(default 100), in 15 to 60 windows; each lasts a third of --duration, or longer if "
            "the percentile needs more calls. A window that fails because of the client is "
            "discarded; the result has a 95 % confidence interval")
      .TypeName("pN=TIME")
      .Exclude(concurrency)
      .Exclude(replay);
  AddOption(app, "--max-in-flight", flags.max_in_flight,
            "Open loop: max calls in flight; further calls wait, which is reported as blocked time",
            1, 1000000)
      .TypeName("N")
      .ShowDefault()
      .Exclude(concurrency);
  arrivals.Exclude(concurrency).Exclude(replay);
  AddOption(app, "--seed", flags.seed, "Seed of arrivals, mix and operands")
      .TypeName("N")
      .ShowDefault();
}

void AddLengthOptions(CLI::App& app, LoadFlags& flags) {
  SetGroup(app, "Duration (times: seconds, or 500ms, 2m)");
  AddOption(app, "--duration", flags.duration,
            "Length of each step after its warm-up (default 10s; with --count no limit)")
      .TypeName("TIME");
  AddOption(app, "--warmup", flags.warmup,
            "Length of the warm-up of each step, not included in any figure")
      .TypeName("TIME")
      .ShowDefault();
  AddOption(app, "--count", flags.count, "Max calls in each step", 1, int64_t{1} << 53)
      .TypeName("N");
  AddOption(app, "--timeout", flags.timeout, "Timeout of one call").TypeName("TIME").ShowDefault();
  AddOption(app, "--interval", flags.interval,
            "Time between two updates of the live view, and two points of plots over time")
      .TypeName("TIME")
      .ShowDefault();
}

void AddLoadFlags(CLI::App& app, LoadFlags& flags) {
  app.add_option("--address", flags.addresses,
                 "Addresses of the servers, used in turn: host:port, tls:host:port or unix:/path; "
                 "also $GEMMD_ADDRESS (default 127.0.0.1:8470)")
      ->delimiter(',')
      ->type_name("ADDRESS,...");
  AddSecurityFlags(app, flags.security);
  AddOption(app, "--channels", flags.channels, "Number of connections to each server", 1, 1024)
      .TypeName("N")
      .ShowDefault();
  AddOption(app, "--owners", flags.owners,
            "Number of clients per server, used in turn: each has its own connections, session and "
            "resident operands",
            1, 1024)
      .TypeName("N")
      .ShowDefault();
  AddOption(app, "--streams", flags.streams,
            "Number of MultiplyStream calls per client that carry the products: waiting products "
            "share a message, and --timeout and --retries do not apply. 0 makes one call per "
            "product",
            0, 1024)
      .TypeName("N")
      .ShowDefault();
  AddOption(app, "--retries", flags.retries,
            "Max retries of a call that a server could not take; in the report, retries appear "
            "only as latency",
            0, 4)
      .TypeName("N")
      .ShowDefault();
  AddFlag(app, "--wait-for-ready", flags.wait_for_ready,
          "Have calls wait for a server that cannot be reached, up to --timeout: it may restart "
          "under load");
  AddProductOptions(app, flags);
  AddLoopOptions(app, flags);
  AddLengthOptions(app, flags);
  SetGroup(app, "Files for the report");
  AddOption(app, "--json", flags.json_path,
            "JSON file of the report, for programs and for gemmload compare")
      .TypeName("PATH");
  AddOption(app, "--csv", flags.csv_path, "CSV file of the report, with one line for each step")
      .TypeName("PATH");
  AddOption(app, "--html", flags.html_path,
            "HTML file of the report: one self-contained page with plots")
      .TypeName("PATH");
  AddFlag(app, "--quiet", flags.is_quiet, "Do not show the live view");
  AddOption(app, "--metrics-listen", flags.metrics_address,
            "IP address and port that serve the running load to Prometheus under /metrics, until "
            "the run ends, without TLS; port 0 selects a free port, printed to standard error; "
            "figures advance by whole intervals (--interval)")
      .TypeName("HOST:PORT");
}

// Errors: InvalidArgument if a given flag would have no effect.
absl::Status CheckLoadFlags(const CLI::App& app, const LoadFlags& flags) {
  const bool has_files = !flags.a_path.empty() || !flags.b_path.empty();
  const bool is_one = app.count("--shape") > 0 || has_files;
  if (app.count("--type") > 0 && !is_one) {
    return absl::InvalidArgumentError("--type: got no product, want --shape, --a or --b");
  }
  for (const char* flag : {"--profile", "--mix"}) {
    if (app.count(flag) == 0 || !has_files) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--operands: got files and ", flag, ", want one of them"));
  }
  const bool is_paced = app.count("--rate") > 0 || app.count("--slo") > 0;
  for (const char* flag : {"--arrivals", "--max-in-flight"}) {
    if (app.count(flag) == 0 || is_paced || app.count("--replay") > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": got a closed loop, want an open one (--rate, --slo)"));
  }
  return absl::OkStatus();
}

constexpr char kFooter[] =
    "Latencies count from the time at which a call was due, so that a stalled server is charged\n"
    "for the calls that it delays. Service times, also in the report, count from the actual send.\n"
    "Ctrl-C ends a run and writes its report.\n\n"
    "Exit codes:\n"
    "  0  done, and every call was sent and answered; with --slo, a rate holds\n"
    "  1  calls failed or were never sent, there was none, or no rate holds\n"
    "  2  bad usage, or a local file that cannot be read or written\n"
    "  3  a server cannot be reached\n"
    "  4  verification failed: an answer is wrong, in any step\n"
    "  5  inconclusive, with --slo: the client is the limit, or windows contradict each other\n\n"
    "Examples:\n"
    "  gemmload --profile small --rate 2000 --duration 20 --html report.html\n"
    "  gemmload --concurrency 1,2,4,8 --shape 512,512,512 --type bf16 --json a.json\n"
    "  gemmload --profile llm-decode --rate 50 --arrivals poisson --seed 7\n"
    "  gemmload --slo p99=2ms\n"
    "  gemmload compare a.json b.json";

// The exit code of a session that has no report.
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
  const auto report = RunSession(flags, *plan, stop, view, metrics.get());
  metrics.reset();
  if (!report.ok()) {
    console.PrintError(report.status());
    return CodeOf(report.status());
  }
  // Files are written first: standard output may be closed.
  const absl::Status written = WriteReportFiles(flags, *report, stop);
  console.Print(ReportText(*report));
  if (!written.ok()) return FailLocally(console, written);
  return ExitCodeOf(*report);
}

absl::StatusOr<ComparedReport> ReadReport(const std::string& path) {
  ASSIGN_OR_RETURN(const auto text, ReadTextFile(path));
  auto report = ParseReport(text);
  if (report.ok()) return report;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", report.status().message()));
}

ExitCode RunCompare(const std::string& a_path, const std::string& b_path, const Console& console) {
  const auto a = ReadReport(a_path);
  if (!a.ok()) return FailLocally(console, a.status());
  const auto b = ReadReport(b_path);
  if (!b.ok()) return FailLocally(console, b.status());
  const auto text = CompareText(*a, *b);
  if (!text.ok()) return FailLocally(console, text.status());
  console.Print(
      absl::StrCat("a  ", a_path, "\nb  ", b_path,
                   "\n"
                   "intervals have 95 % confidence, from order statistics of all calls and from "
                   "the scatter over the run; figures differ if their intervals do not overlap\n\n",
                   *text));
  return ExitCode::kOk;
}

// The argument with the name that its option has now.
std::string CurrentName(absl::string_view argument) {
  constexpr absl::string_view kEarlier = "--most-in-flight";
  absl::string_view value = argument;
  const bool is_earlier =
      absl::ConsumePrefix(&value, kEarlier) && (value.empty() || value.front() == '=');
  return is_earlier ? absl::StrCat("--max-in-flight", value) : std::string(argument);
}

}  // namespace

ExitCode ExitCodeOf(const LoadReport& report) {
  if (report.wrong() > 0) return ExitCode::kVerification;
  using End = SloAnswer::End;
  const End end = report.slo.has_value() ? report.slo->answer.end : End::kInterrupted;
  if (end == End::kClientLimit || end == End::kTooNoisy) return ExitCode::kInconclusive;
  // A search continues until calls fail, so failures are expected.
  const bool is_good = report.slo.has_value()
                           ? report.slo->answer.rate > 0
                           : report.calls() > 0 && report.failed() == 0 && report.unsent() == 0;
  return is_good ? ExitCode::kOk : ExitCode::kRefused;
}

ExitCode RunGemmload(const std::vector<std::string>& arguments, const std::string& address,
                     const Console& console, bool is_terminal, const StopRequests& stop,
                     const SecurityFlags& security) {
  CLI::App app("Loads gemmd servers with matrix products and reports rates, latencies and errors",
               "gemmload");
  app.footer(kFooter);
  app.set_version_flag("--version", ToolVersionText("gemmload"));
  LoadFlags flags;
  flags.security = security;
  CLI::App& compare =
      *app.add_subcommand("compare", "Show how two reports differ, and how much of that is noise");
  std::string a_path;
  std::string b_path;
  AddOption(compare, "A", a_path, "First report, a file written by --json")
      .Require()
      .TypeName("PATH");
  AddOption(compare, "B", b_path, "Second report, a file written by --json")
      .Require()
      .TypeName("PATH");
  AddLoadFlags(app, flags);
  // CLI11 takes the last argument first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  for (std::string& argument : reversed) argument = CurrentName(argument);
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
  if (compare.parsed()) return RunCompare(a_path, b_path, console);
  if (absl::Status status = CheckLoadFlags(app, flags); !status.ok())
    return FailLocally(console, status);
  if (flags.addresses.empty()) flags.addresses = absl::StrSplit(address, ',', absl::SkipEmpty());
  flags.command = absl::StrCat("gemmload ", absl::StrJoin(arguments, " "));
  return RunLoadCommand(flags, console, is_terminal, stop);
}

}  // namespace gemmd
