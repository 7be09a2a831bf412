// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/flags.h"
#include "client/gemmctl/listing_flags.h"
#include "client/gemmctl/product_flags.h"
#include "client/terminal/type_option.h"

namespace gemmd {
namespace {

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0  done; health: serving\n"
    "  1  the server refused or failed (message with its status on standard error)\n"
    "  2  bad usage, or a local file that cannot be read or written\n"
    "  3  server unreachable or unavailable, or no answer within the timeout\n"
    "  4  verification failed: the server's result is wrong";

constexpr char kMultiplyExamples[] =
    "TYPE is f64, f32, tf32, f16, bf16, e4m3, e5m2, e3m2, e2m3, e2m1, s8, u8, s4, u4, b1 or "
    "s32.\n\n"
    "Examples:\n"
    "  gemmctl multiply A.npy B.npy -o D.npy                 D = A B\n"
    "  gemmctl multiply A.npy W.npy --transpose-b --bias bias.npy --activation relu -o D.npy\n"
    "  gemmctl multiply A.npy B.npy --type e4m3 --scale-a 0.5 --scale-b s.npy --output-type bf16 "
    "-o D.npy\n"
    "  gemmctl multiply - B.npy -o - < A.npy > D.npy         A from a pipe, D into one\n"
    "  gemmctl multiply --random 4096,4096,4096 --type bf16 --repeat 20 --warmup 3\n"
    "  gemmctl multiply --random 65,33,129 --type s8 --batch 4 --verify";

constexpr char kExplainExamples[] =
    "TYPE is f64, f32, tf32, f16, bf16, e4m3, e5m2, e3m2, e2m3, e2m1, s8, u8, s4, u4, b1 or "
    "s32.\n\n"
    "Examples:\n"
    "  gemmctl explain --random 4095,4097,4093 --type bf16\n"
    "  gemmctl explain A.npy B.npy --deterministic\n"
    "  gemmctl explain --random 1,4096,4096 --type s8 --output-type s8 --json";

bool IsTraceparent(const std::string& text) {
  constexpr std::string_view kForm = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  return std::equal(text.begin(), text.end(), kForm.begin(), kForm.end(), [](char c, char form) {
    const bool is_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    return form == 'x' ? is_digit : c == form;
  });
}

// The commands with their flags; `run` is set to the one that was given.
class CommandLine {
 public:
  explicit CommandLine(const std::string& address) {
    global_.address = address;
    app_.footer(kExitCodes);
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.set_help_all_flag("--help-all", "Print the help of all commands");
    app_.set_version_flag("--version", std::string("gemmctl ") + GEMMD_VERSION);
    app_.add_option("--address", global_.address,
                    "The server: host:port or unix:/path; also $GEMMD_ADDRESS")
        ->capture_default_str();
    app_.add_option("--timeout", global_.timeout,
                    "Of each call, retries included: seconds, or 500ms, 2m (default 60)");
    app_.add_flag("--json", global_.json, "Print JSON, one value per line, instead of tables");
    AddMultiply();
    AddExplain();
    AddRandom();
    AddListings();
    AddTop();
    AddHealth();
  }

  ExitCode Run(const std::vector<std::string>& arguments, const Console& console) {
    std::vector<std::string> reversed(arguments.rbegin(),
                                      arguments.rend());  // As CLI11 wants them.
    try {
      app_.parse(reversed);
    } catch (const CLI::ParseError& error) {
      std::ostringstream out;
      std::ostringstream err;
      if (app_.exit(error, out, err) != 0)
        return FailLocally(console, absl::InvalidArgumentError(error.what()));
      console.Print(out.str());
      return ExitCode::kOk;
    }
    return run_(console);
  }

 private:
  void AddMultiply() {
    CLI::App& app =
        *app_.add_subcommand("multiply", "Multiply two matrices and print where the time went");
    app.footer(kMultiplyExamples);
    AddProductFlags(app, multiply_.product);
    app.add_option("-o,--output", multiply_.output_path, "D, a .npy file; - is standard output")
        ->group("Output");
    app.add_option("--repeat", multiply_.repeat, "Calls; prints min, p50 and p99 of every stage")
        ->check(CLI::PositiveNumber.description(""))
        ->capture_default_str()
        ->type_name("N")
        ->group("Output");
    app.add_option("--warmup", multiply_.warmup, "Calls before those, not counted")
        ->check(CLI::NonNegativeNumber.description(""))
        ->capture_default_str()
        ->type_name("N")
        ->group("Output");
    app.add_flag("--verify", multiply_.verify,
                 "Check D against an f64 product computed here, within a derived bound (exact for "
                 "integers); "
                 "evenly chosen rows where the product is big")
        ->group("Output");
    app.add_option("--traceparent", multiply_.traceparent,
                   "The trace that the calls belong to, as W3C Trace Context has it; the daemon "
                   "logs it")
        ->check([](const std::string& text) {
          return IsTraceparent(text) ? std::string()
                                     : "got " + text +
                                           ", want 00-TRACE-PARENT-FLAGS of 32, 16 "
                                           "and 2 lower-case hexadecimal digits";
        })
        ->type_name("TRACEPARENT")
        ->group("Output");
    app.callback(
        [this] { run_ = [this](const Console& c) { return RunMultiply(global_, multiply_, c); }; });
  }

  void AddExplain() {
    CLI::App& app = *app_.add_subcommand(
        "explain", "Show which kernel would run a product, and why not the others");
    app.footer(kExplainExamples);
    AddProductFlags(app, explain_.product);
    app.add_flag("--all", explain_.all, "Every candidate and every refused kernel, one a line")
        ->group("Output");
    app.callback(
        [this] { run_ = [this](const Console& c) { return RunExplain(global_, explain_, c); }; });
  }

  void AddRandom() {
    CLI::App& app =
        *app_.add_subcommand("random", "Write a random matrix to a .npy file (needs no server)");
    app.footer(
        "Examples:\n  gemmctl random 300,200 -o A.npy\n  gemmctl random 4,64,64 --type e4m3 --seed "
        "7 -o B.npy");
    app.add_option("SHAPE", random_.shape, "rows,columns or batch,rows,columns")
        ->required()
        ->delimiter(',')
        ->expected(2, 3)
        ->check(CLI::NonNegativeNumber.description(""))
        ->type_name("");
    AddTypeOption(app, "--type", random_.type, "Type of the elements")->capture_default_str();
    app.add_option("--order", random_.order, "Storage order")
        ->check(CLI::IsMember({"row", "column"}).description(""))
        ->type_name("row|column")
        ->capture_default_str();
    app.add_option("--seed", random_.seed, "Of the random numbers")
        ->capture_default_str()
        ->type_name("N");
    app.add_option("-o,--output", random_.output_path, "The file; - is standard output")
        ->required()
        ->type_name("PATH");
    app.callback([this] { run_ = [this](const Console& c) { return RunRandom(random_, c); }; });
  }

  void AddListings() {
    CLI::App& kernels = *app_.add_subcommand("kernels", "List the server's kernels");
    AddKernelsFlags(kernels, kernels_);
    kernels.callback(
        [this] { run_ = [this](const Console& c) { return RunKernels(global_, kernels_, c); }; });

    CLI::App& instructions = *app_.add_subcommand(
        "instructions", "List the matrix instructions of PTX and which chip has them");
    AddInstructionsFlags(instructions, instructions_);
    instructions.callback([this] {
      run_ = [this](const Console& c) { return RunInstructions(global_, instructions_, c); };
    });

    CLI::App& fragment = *app_.add_subcommand(
        "fragment", "Draw which register of which lane holds which element of an instruction");
    AddFragmentFlags(fragment, fragment_);
    fragment.callback(
        [this] { run_ = [this](const Console& c) { return RunFragment(global_, fragment_, c); }; });

    CLI::App& devices = *app_.add_subcommand(
        "devices", "List the server's devices, their queues and measured rates");
    devices.footer("Examples:\n  gemmctl devices\n  gemmctl devices --json | jq '.devices[].name'");
    devices.callback(
        [this] { run_ = [this](const Console& c) { return RunDevices(global_, c); }; });

    CLI::App& info = *app_.add_subcommand("info", "Show the server's version, limits and features");
    info.footer("Examples:\n  gemmctl info\n  gemmctl --address unix:/run/gemmd.sock info --json");
    info.callback([this] { run_ = [this](const Console& c) { return RunInfo(global_, c); }; });
  }

  void AddTop() {
    CLI::App& app = *app_.add_subcommand("top", "Watch the server's devices, queues and rates");
    AddTopFlags(app, top_);
    app.callback([this] { run_ = [this](const Console& c) { return RunTop(global_, top_, c); }; });
  }

  void AddHealth() {
    CLI::App& app =
        *app_.add_subcommand("health", "Ask whether the server takes requests (grpc.health.v1)");
    app.footer(
        "Examples:\n  gemmctl health && echo up\n  gemmctl health --service gemmd.v1.Gemm "
        "--watch\n\n"
        "Exits with 0 only for SERVING; with --watch, if the last status was that.");
    app.add_option("--service", health_.service, "One service (default: the server as a whole)");
    app.add_flag("--watch", health_.watch, "Print each change until the timeout (default: a year)");
    app.callback(
        [this] { run_ = [this](const Console& c) { return RunHealth(global_, health_, c); }; });
  }

  CLI::App app_{"Matrix products on a gemmd server", "gemmctl"};
  GlobalFlags global_;
  MultiplyFlags multiply_;
  ExplainFlags explain_;
  RandomFlags random_;
  KernelsFlags kernels_;
  InstructionsFlags instructions_;
  FragmentFlags fragment_;
  TopFlags top_;
  HealthFlags health_;
  std::function<ExitCode(const Console&)> run_;
};

}  // namespace

ExitCode RunCommandLine(const std::vector<std::string>& arguments, const std::string& address,
                        const Console& console) {
  return CommandLine(address).Run(arguments, console);
}

}  // namespace gemmd
