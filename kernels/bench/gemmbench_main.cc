// SPDX-License-Identifier: Apache-2.0
//
// gemmbench: measures the catalogue's rows beside the vendors' libraries.

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/gpu_command.h"
#include "kernels/bench/measure_cpu.h"
#include "kernels/bench/measure_simulator.h"
#include "kernels/bench/options.h"
#include "kernels/bench/session.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/library_settings.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/option/option.h"

namespace gemmd::bench {
namespace {

Fields HostFacts(const Options& options) {
  return {{"processor", ProcessorName()}, {"threads", options.threads}};
}

Order BOrderOf(const Options& options) {
  return options.b_order == "row" ? Order::kRowMajor : Order::kColumnMajor;
}

// Ends a measurement. A missing feature of the processor or chip is not a failure.
template <typename Measurement>
void Finish(Session& session, const Kernel& kernel, const Shape& shape,
            const absl::StatusOr<Measurement>& measurement) {
  if (measurement.ok()) {
    session.Keep(EntryOf(*measurement));
  } else if (absl::IsFailedPrecondition(measurement.status())) {
    session.Skip(kernel.name, shape, measurement.status());
  } else {
    session.Fail(kernel.name, shape, measurement.status());
  }
}

// The error if the system had free memory, but this process may not use it.
std::string NoMemoryFor(const Shape& shape) {
  return GotWant("--shapes", NameOf(shape), "a product for which there is memory");
}

absl::StatusOr<CpuMeasurement> TryOnCpu(const Kernel& kernel, const Shape& shape,
                                        const CpuSettings& settings) {
  RETURN_IF_ERROR(kernel.available(HostTarget()));
  return OrNoMemory(NoMemoryFor(shape), [&] { return MeasureOnCpu(kernel, shape, settings); });
}

// A row and a path of the simulator for it.
struct Way {
  const Kernel* kernel;
  sim::Path path;
};

std::vector<Way> WaysOf(const Options& options, const std::vector<const Kernel*>& rows,
                        mma::Chip chip) {
  std::vector<Way> ways;
  for (const Kernel* kernel : rows) {
    for (const sim::Path path : PathsOf(*kernel, chip)) {
      if (options.path.empty() || options.path == NameOf(path)) ways.push_back({kernel, path});
    }
  }
  return ways;
}

// Measures the CPU's rows beside their libraries, prints and writes files. Returns false if a
// result was wrong or a row failed. Errors: those of Session::End.
absl::StatusOr<bool> RunOnCpu(const Options& options, const std::vector<const Kernel*>& rows) {
  Fields facts = HostFacts(options);
  for (const LibraryVersion& library : CpuLibraries()) {
    facts.push_back({Concat("libraries.", library.name), library.version});
  }
  const CpuSettings settings = {
      .b_order = BOrderOf(options), .seconds = options.seconds, .min_samples = options.repeat};
  Session session(options, CpuColumns(), std::move(facts), options.shapes.size() * rows.size());
  for (const Shape& shape : options.shapes) {
    for (const Kernel* kernel : rows) {
      session.Begin(kernel->name, shape);
      Finish(session, *kernel, shape, TryOnCpu(*kernel, shape, settings));
    }
    RETURN_IF_ERROR(session.WriteFiles());
  }
  RETURN_IF_ERROR(session.End());
  return session.is_right();
}

// The same on the simulator of the options' chip; also returns false if the chip has none of the
// rows.
absl::StatusOr<bool> RunOnSimulator(const Options& options,
                                    const std::vector<const Kernel*>& rows) {
  const mma::Chip chip = *mma::ChipFromName(options.chip);
  const std::vector<Way> ways = WaysOf(options, rows, chip);
  const SimulatorSettings settings = {.b_order = BOrderOf(options), .seconds = options.seconds};
  Session session(options, SimulatorColumns(), HostFacts(options),
                  options.shapes.size() * ways.size());
  for (const Shape& shape : options.shapes) {
    for (const Way& way : ways) {
      session.Begin(way.kernel->name, shape);
      Finish(session, *way.kernel, shape, OrNoMemory(NoMemoryFor(shape), [&] {
               return MeasureOnSimulator(*way.kernel, chip, way.path, shape, settings);
             }));
    }
    RETURN_IF_ERROR(session.WriteFiles());
  }
  RETURN_IF_ERROR(session.End());
  return session.is_right() && !session.is_empty();
}

// The part of the catalogue that the options select.
absl::Span<const Kernel> CatalogOf(const Options& options, bool is_whole) {
  if (is_whole) return Catalog();
  if (options.gpu) return Catalog(DeviceKind::kCuda);
  return Catalog(options.simulates() ? DeviceKind::kSim : DeviceKind::kCpu);
}

absl::StatusOr<bool> Measure(const Options& options, const std::vector<const Kernel*>& rows) {
  SetThreads(options.threads);  // On a GPU: threads of the simulator, for comparisons.
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
