// SPDX-License-Identifier: Apache-2.0
//
// gemmbench: the catalogue's rows beside their libraries.
#include <fnmatch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/bench/measure.h"
#include "kernels/bench/report.h"
#include "kernels/bench/simulator.h"
#include "kernels/catalog.h"
#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/host.h"
#include "kernels/mma/find.h"

namespace gemmd::bench {
namespace {

constexpr char kDescription[] =
    "Times rows of the kernel catalogue beside the library that each one uses, called directly on "
    "the\n"
    "same layout, in the same run and in turns. Data are normal variates (integers: all values), "
    "three\n"
    "sets of operands in turn; times are medians after a warm-up; a thousand elements of each "
    "result\n"
    "are checked against a reference.";

constexpr char kExamples[] =
    "The ratio is the row's speed over the library's: 1 is as fast, below 0.95 misses the budget. "
    "For a\n"
    "row that widens its operands (.via_...) the library gets them widened already.\n"
    "\n"
    "Examples:\n"
    "  gemmbench --filter 'openblas.f64*' --shapes 2048\n"
    "  gemmbench --filter '*.f32.f32,*.s8.s8' --shapes 64,512x512x4096 --threads 1\n"
    "  gemmbench --list\n"
    "  gemmbench --filter '*via_bf16' --json results.json\n"
    "  gemmbench --chip sm_90 --threads 1 --path avx2\n"
    "\n"
    "Exit status: 0; 1 where a result was wrong or a row failed; other numbers for wrong options.";

constexpr char kLibraryRows[] =
    "onednn.f32.f32.f32,openblas.f64.f64.f64,onednn.s32.s8.s8,onednn.f32.bf16.bf16";
constexpr char kSimulatorRows[] =
    "mma.m16n8k16.f32.f16.f16.f32,mma.m16n8k16.f16.f16.f16.f16,mma.m16n8k16.f32.bf16.bf16.f32,"
    "mma.m16n8k8.f32.tf32.tf32.f32,mma.m16n8k32.f32.e4m3.e4m3.f32,wgmma.m64n256k32.f32.e4m3.e4m3,"
    "mma.m16n8k32.s32.s8.s8.s32,mma.m16n8k256.s32.b1.b1.s32.and.popc,mma.m16n8k16.f64,"
    "mma.sp.m16n8k32.f32.f16.f16.f32";

struct Options {
  std::string filter;  // Empty: one of the lists above.
  std::string chip;    // Empty: the libraries.
  std::string path;    // Of the simulator; empty: every one.
  std::string shapes;  // Empty: 2048, or 1024 for the simulator.
  std::string b_order = "row";
  std::string json;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  double seconds = 2;
  int repeat = 5;
  bool lists = false;
};

// "2048" or "512x512x4096".
bool ParseShape(const std::string& text, Shape& shape) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  std::vector<int64_t> extents;
  for (const std::string& part : parts) {
    int64_t extent = 0;
    if (!absl::SimpleAtoi(part, &extent) || extent < 1) return false;
    extents.push_back(extent);
  }
  if (extents.size() == 1) extents = {extents[0], extents[0], extents[0]};
  if (extents.size() != 3) return false;
  shape = {extents[0], extents[1], extents[2]};
  return true;
}

std::vector<std::string> SplitList(const std::string& text) { return absl::StrSplit(text, ','); }

std::string CheckShapes(const std::string& text) {
  for (const std::string& part : SplitList(text)) {
    Shape shape;
    if (!ParseShape(part, shape)) return "got " + part + ", want N or MxNxK with numbers above 0";
  }
  return "";
}

std::vector<Shape> ParseShapes(const std::string& text) {
  std::vector<Shape> shapes;
  for (const std::string& part : SplitList(text)) {
    if (Shape shape; ParseShape(part, shape)) shapes.push_back(shape);
  }
  return shapes;
}

std::vector<const Kernel*> SelectRows(const std::string& filter) {
  std::vector<const Kernel*> rows;
  const std::vector<std::string> patterns = SplitList(filter);
  for (const Kernel& kernel : Catalog()) {
    const std::string name(kernel.name);
    const bool matches = std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
      return fnmatch(p.c_str(), name.c_str(), 0) == 0;
    });
    if (matches) rows.push_back(&kernel);
  }
  return rows;
}

std::string CheckChip(const std::string& name) {
  if (mma::ChipFromName(name)) return "";
  return "got " + name +
         ", want sm_70, sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_103 or sm_120";
}

void ShowProgress(const Kernel& kernel, const Shape& shape) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s %ldx%ldx%ld ...\r", std::string(kernel.name).c_str(),
               static_cast<long>(shape.m), static_cast<long>(shape.n), static_cast<long>(shape.k));
}

void ClearProgress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

void AddOptions(CLI::App& app, Options& options) {
  app.footer(kExamples);
  app.add_option("--filter", options.filter, "Rows: patterns of names, separated by commas")
      ->default_str("one row of each library type, or of each kind of instruction");
  app.add_option("--shapes", options.shapes, "Products: N or MxNxK, separated by commas")
      ->check(CheckShapes)
      ->default_str("2048, of the simulator 1024");
  app.add_option(
         "--chip", options.chip,
         "Time the simulator of this chip (sm_90) in place of the libraries, and compare it "
         "with its own scalar path")
      ->check(CheckChip);
  app.add_option("--path", options.path, "Of the simulator: only this one")
      ->check(CLI::IsMember({"scalar", "avx2", "avx512"}));
  app.add_option("--b-order", options.b_order, "Storage order of B; A and D are row major")
      ->check(CLI::IsMember({"row", "column"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads of the libraries")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Time for each row and shape")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--repeat", options.repeat, "Least number of samples")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--json", options.json, "Write the results there as JSON too; - is the output");
  app.add_flag("--list", options.lists, "List the catalogue's rows and end");
}

// Measures and prints; false where something was wrong.
bool RunAll(const Options& options, std::vector<Measurement>& measurements) {
  const bool prints_table = options.json != "-";
  const Settings settings = {
      .b_order = options.b_order == "row" ? Order::kRowMajor : Order::kColumnMajor,
      .seconds = options.seconds,
      .min_samples = options.repeat};
  const std::vector<const Kernel*> rows = SelectRows(options.filter);
  if (rows.empty()) {
    std::cerr << "--filter: got " << options.filter << ", want a pattern of a row (see --list)\n";
    return false;
  }
  if (prints_table) std::cout << TableHeader();
  bool is_right = true;
  for (const Shape& shape : ParseShapes(options.shapes)) {
    for (const Kernel* kernel : rows) {
      ShowProgress(*kernel, shape);
      absl::Status status = kernel->available(HostTarget());
      if (status.ok()) {
        const absl::StatusOr<Measurement> measured = Measure(*kernel, shape, settings);
        status = measured.status();
        if (measured.ok()) {
          ClearProgress();
          if (prints_table) std::cout << TableLine(*measured) << std::flush;
          is_right &= measured->verdict == "ok";
          measurements.push_back(*measured);
        }
      }
      if (!status.ok()) {
        std::cerr << kernel->name << ": " << status.message() << "\n";
        is_right &= absl::IsFailedPrecondition(status);
      }
    }
  }
  return is_right;
}

// The same for the simulator.
bool RunSimulator(const Options& options, std::vector<SimulatorRun>& runs) {
  const bool prints_table = options.json != "-";
  const mma::Chip chip = *mma::ChipFromName(options.chip);
  bool is_right = true;
  if (prints_table) std::cout << SimulatorTableHeader();
  for (const Shape& shape : ParseShapes(options.shapes)) {
    for (const Kernel* kernel : SelectRows(options.filter)) {
      if (kernel->instruction == nullptr) continue;
      for (const sim::Path path : PathsOf(*kernel, chip)) {
        if (!options.path.empty() && options.path != NameOf(path)) continue;
        ShowProgress(*kernel, shape);
        const absl::StatusOr<SimulatorRun> run =
            MeasureSimulator(*kernel, chip, path, shape, options.seconds);
        ClearProgress();
        if (!run.ok()) {
          std::cerr << kernel->name << ": " << run.status().message() << "\n";
          is_right &= absl::IsFailedPrecondition(run.status());
          continue;
        }
        if (prints_table) std::cout << SimulatorTableLine(*run) << std::flush;
        is_right &= run->verdict == "ok";
        runs.push_back(*run);
      }
    }
  }
  return is_right && !runs.empty();
}

// As the daemon does: OpenBLAS reads its environment only while it is loaded.
void PreferBetterBlas(char** argv) {
  constexpr char kVariable[] = "OPENBLAS_CORETYPE";
  const std::string core = BetterBlasCore();
  // No other thread exists yet.
  if (core.empty() || getenv(kVariable) != nullptr) return;  // NOLINT(concurrency-mt-unsafe)
  setenv(kVariable, core.c_str(), 1);                        // NOLINT(concurrency-mt-unsafe)
  execv("/proc/self/exe", argv);                             // Returns only where it fails.
}

int Main(int argc, char** argv) {
  PreferBetterBlas(argv);
  CLI::App app(kDescription, "gemmbench");
  Options options;
  AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  if (options.lists) {
    for (const Kernel& kernel : Catalog()) std::cout << kernel.name << "\n";
    return 0;
  }
  const bool simulates = !options.chip.empty();
  if (options.filter.empty()) options.filter = simulates ? kSimulatorRows : kLibraryRows;
  if (options.shapes.empty()) options.shapes = simulates ? "1024" : "2048";
  SetThreads(options.threads);
  std::vector<Measurement> measurements;
  std::vector<SimulatorRun> runs;
  const bool is_right = simulates ? RunSimulator(options, runs) : RunAll(options, measurements);
  if (!options.json.empty()) {
    const std::string json = simulates ? SimulatorJson(HostName(), options.threads, runs)
                                       : ToJson({HostName(), options.threads}, measurements);
    if (options.json == "-") {
      std::cout << json;
    } else if (!(std::ofstream(options.json) << json)) {
      std::cerr << "--json: cannot write " << options.json << "\n";
      return 1;
    }
  }
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace gemmd::bench

// Where memory runs out, the program ends.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return gemmd::bench::Main(argc, argv); }
