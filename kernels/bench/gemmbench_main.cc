// SPDX-License-Identifier: Apache-2.0
//
// gemmbench: the catalogue's rows beside their libraries.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/bench/gpu/gpu_command.h"
#include "kernels/bench/measure.h"
#include "kernels/bench/options.h"
#include "kernels/bench/report.h"
#include "kernels/bench/row_choice.h"
#include "kernels/bench/simulator_timing.h"
#include "kernels/catalog.h"
#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/library_settings.h"
#include "kernels/mma/find.h"

namespace gemmd::bench {
namespace {

using Rows = std::vector<const Kernel*>;

void ShowProgress(const Kernel& kernel, const Shape& shape) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s %ldx%ldx%ld ...\r", std::string(kernel.name).c_str(),
               static_cast<long>(shape.m), static_cast<long>(shape.n), static_cast<long>(shape.k));
}

void ClearProgress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

// Measures and prints; false where something was wrong.
bool RunAll(const Options& options, const Rows& rows, std::vector<Measurement>& measurements) {
  const bool prints_table = options.json != "-";
  const Settings settings = {
      .b_order = options.b_order == "row" ? Order::kRowMajor : Order::kColumnMajor,
      .seconds = options.seconds,
      .min_samples = options.repeat};
  if (prints_table) std::cout << TableHeader();
  bool is_right = true;
  for (const Shape& shape : options.shapes) {
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
bool RunSimulator(const Options& options, const Rows& rows, std::vector<SimulatorRun>& runs) {
  const bool prints_table = options.json != "-";
  const mma::Chip chip = *mma::ChipFromName(options.chip);
  bool is_right = true;
  if (prints_table) std::cout << SimulatorTableHeader();
  for (const Shape& shape : options.shapes) {
    for (const Kernel* kernel : rows) {
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

// The part of the catalogue that the options are about.
absl::Span<const Kernel> CatalogOf(const Options& options, bool is_whole) {
  if (is_whole) return Catalog();
  if (options.gpu) return Catalog(DeviceKind::kCuda);
  return Catalog(options.simulates() ? DeviceKind::kSim : DeviceKind::kCpu);
}

// On this processor: its libraries, or the simulator.
int RunOnHost(const Options& options, const Rows& rows) {
  SetThreads(options.threads);
  std::vector<Measurement> measurements;
  std::vector<SimulatorRun> runs;
  const bool is_right =
      options.simulates() ? RunSimulator(options, rows, runs) : RunAll(options, rows, measurements);
  if (!options.json.empty()) {
    const std::string json = options.simulates()
                                 ? SimulatorJson(ProcessorName(), options.threads, runs)
                                 : ToJson({ProcessorName(), options.threads}, measurements);
    if (options.json == "-") {
      std::cout << json;
    } else if (!(std::ofstream(options.json) << json)) {
      std::cerr << "--json: cannot write " << options.json << "\n";
      return 1;
    }
  }
  return is_right ? 0 : 1;
}

int RunGpu(const Options& options, const Rows& rows) {
  SetThreads(options.threads);  // Of the simulator, for the comparisons.
  const absl::StatusOr<bool> is_right =
      RunOnGpu({.device = *options.gpu,
                .rows = rows,
                .shapes = options.shapes,
                .orders = options.orders,
                .leading_dimension_offset = options.leading_dimension_offset,
                .seconds = options.seconds,
                .min_samples = options.repeat,
                .uses_libraries = !options.leaves_libraries_out,
                .cublaslt = options.cublaslt,
                .cusparselt = options.cusparselt,
                .csv = options.csv,
                .json = options.json,
                .save = options.save,
                .commit = options.commit,
                .command = options.command,
                .shows_progress = options.shows_progress});
  if (!is_right.ok()) std::cerr << is_right.status().message() << "\n";
  return is_right.ok() && *is_right ? 0 : 1;
}

int Run(const Options& options, bool lists_whole_catalog) {
  const absl::Span<const Kernel> catalog = CatalogOf(options, lists_whole_catalog);
  for (const std::string& pattern : IdlePatterns(catalog, options.filters)) {
    std::cerr << "--filter: got " << pattern << ", want a pattern of a row (see --list)\n";
    return 1;
  }
  const Rows rows = ChooseRows(catalog, options.filters);
  if (!options.lists) return options.gpu ? RunGpu(options, rows) : RunOnHost(options, rows);
  for (const Kernel* kernel : rows) std::cout << kernel->name << "\n";
  return 0;
}

int Main(int argc, char** argv) {
  const LibrarySetting core = {"OPENBLAS_CORETYPE", BetterBlasCore()};
  PreferSettings({&core, 1}, argv);
  CLI::App app("", "gemmbench");
  Options options;
  absl::Status status;
  try {
    status = ParseOptions(argc, argv, app, options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 2;
  }
  const bool names_a_device = app.count("--device") > 0 || options.simulates();
  return Run(options, options.lists && !names_a_device);
}

}  // namespace
}  // namespace gemmd::bench

// Where memory runs out, the program ends.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return gemmd::bench::Main(argc, argv); }
