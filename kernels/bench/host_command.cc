// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/host_command.h"

#include <utility>

#include "kernels/bench/measure_cpu.h"
#include "kernels/bench/measure_simulator.h"
#include "kernels/bench/session.h"
#include "kernels/cpu/host.h"
#include "kernels/mma/find.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

Fields HostFacts(const Options& options) {
  return {{"processor", ProcessorName()}, {"threads", options.threads}};
}

Order BOrderOf(const Options& options) {
  return options.b_order == "row" ? Order::kRowMajor : Order::kColumnMajor;
}

// Ends a measurement. That this processor or this chip lacks something is no failure.
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

// Where more was free than this process may have.
std::string NoMemoryFor(const Shape& shape) {
  return GotWant("--shapes", NameOf(shape), "a product for which there is memory");
}

absl::StatusOr<CpuMeasurement> TryOnCpu(const Kernel& kernel, const Shape& shape,
                                        const CpuSettings& settings) {
  RETURN_IF_ERROR(kernel.available(HostTarget()));
  return OrNoMemory(NoMemoryFor(shape), [&] { return MeasureOnCpu(kernel, shape, settings); });
}

// A row and a path of the simulator that has it.
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

}  // namespace

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

}  // namespace gemmd::bench
