// SPDX-License-Identifier: Apache-2.0
//
// gemmbench: the catalogue's rows beside their libraries.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/bench/gpu/gpu_command.h"
#include "kernels/bench/host_command.h"
#include "kernels/bench/options.h"
#include "kernels/bench/row_choice.h"
#include "kernels/catalog.h"
#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/library_settings.h"
#include "kernels/option/mismatch.h"

namespace gemmd::bench {
namespace {

// The part of the catalogue that the options are about.
absl::Span<const Kernel> CatalogOf(const Options& options, bool is_whole) {
  if (is_whole) return Catalog();
  if (options.gpu) return Catalog(DeviceKind::kCuda);
  return Catalog(options.simulates() ? DeviceKind::kSim : DeviceKind::kCpu);
}

absl::StatusOr<bool> Measure(const Options& options, const std::vector<const Kernel*>& rows) {
  SetThreads(options.threads);  // On a GPU those of the simulator, for the comparisons.
  if (options.gpu) return RunOnGpu(options, rows);
  return options.simulates() ? RunOnSimulator(options, rows) : RunOnCpu(options, rows);
}

int Run(const Options& options, bool lists_whole_catalog) {
  const absl::Span<const Kernel> catalog = CatalogOf(options, lists_whole_catalog);
  for (const std::string& pattern : IdlePatterns(catalog, options.filters)) {
    std::cerr << "--filter: got " << pattern << ", want a pattern of a row (see --list)\n";
    return 1;
  }
  const std::vector<const Kernel*> rows = ChooseRows(catalog, options.filters);
  if (options.lists) {
    for (const Kernel* kernel : rows) std::cout << kernel->name << "\n";
    return 0;
  }
  const absl::StatusOr<bool> is_right = Measure(options, rows);
  if (!is_right.ok()) std::cerr << is_right.status().message() << "\n";
  return is_right.ok() && *is_right ? 0 : 1;
}

int Main(int argc, char** argv) {
  const LibrarySetting core = {"OPENBLAS_CORETYPE", BetterBlasCore()};
  PreferSettings({&core, 1}, argv);
  CLI::App app("", "gemmbench");
  app.failure_message(option::FailureText);
  Options options;
  absl::Status status;
  try {
    status = ParseOptions(argc, argv, app, options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 2;
  }
  const bool names_a_device = app.count("--device") > 0 || options.simulates();
  const int code = Run(options, options.lists && !names_a_device);
  if (std::cout.flush()) return code;
  std::cerr << "cannot write the standard output\n";
  return 1;
}

}  // namespace
}  // namespace gemmd::bench

// Where memory runs out, the program ends.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return gemmd::bench::Main(argc, argv); }
