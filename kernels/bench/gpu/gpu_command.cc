// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/gpu_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <utility>

#include "kernels/bench/gpu/cublaslt.h"
#include "kernels/bench/gpu/cuda_device.h"
#include "kernels/bench/gpu/cusparselt.h"
#include "kernels/bench/gpu/errors.h"
#include "kernels/bench/gpu/measure_rows.h"
#include "kernels/bench/session.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

using Rows = std::vector<const Kernel*>;

// The vendors' libraries that were found.
struct LoadedLibraries {
  std::unique_ptr<Library> cublaslt;
  std::unique_ptr<Library> cusparselt;

  Libraries borrowed() const { return {cublaslt.get(), cusparselt.get()}; }
};

// Returns null and prints why if the library was not found.
std::unique_ptr<Library> OrNone(const char* name,
                                absl::StatusOr<std::unique_ptr<Library>> library) {
  if (library.ok()) return *std::move(library);
  std::cerr << "no " << name << ": " << library.status().message() << "\n";
  return nullptr;
}

LoadedLibraries LoadLibraries(const Options& options) {
  if (options.leaves_libraries_out) return {};
  return {OrNone("cuBLASLt", LoadCublasLt(options.cublaslt)),
          OrNone("cuSPARSELt", LoadCusparseLt(options.cusparselt))};
}

std::string VersionOf(const std::unique_ptr<Library>& library) {
  return library != nullptr ? library->version() : "";
}

Fields FactsOf(const DeviceFacts& device, const LoadedLibraries& libraries) {
  return {{"gpu", device.name},
          {"chip", std::string(mma::NameOf(device.target.chip))},
          {"multiprocessors", device.target.multiprocessors},
          {"max_sm_clock_mhz", device.max_sm_clock_mhz},
          {"driver", device.driver},
          {"cuda", device.cuda},
          {"cublaslt", VersionOf(libraries.cublaslt)},
          {"cusparselt", VersionOf(libraries.cusparselt)}};
}

// The rows that the chip supports; prints the number of the others once.
absl::StatusOr<Rows> AvailableRows(const Rows& rows, const Target& target) {
  Rows available;
  absl::Status why;
  for (const Kernel* kernel : rows) {
    const absl::Status status = kernel->available(target);
    if (status.ok()) {
      available.push_back(kernel);
    } else {
      why = status;
    }
  }
  if (available.empty()) return why;
  if (available.size() < rows.size()) {
    std::cerr << rows.size() - available.size() << " of " << rows.size()
              << " rows are not for this chip, as: " << why.message() << "\n";
  }
  return available;
}

GpuSettings SettingsOf(const Options& options) {
  GpuSettings settings;
  settings.leading_dimension_offset = options.leading_dimension_offset;
  settings.output = options.output;
  settings.alone_seconds = options.alone_seconds;
  settings.host_launches = options.host_launches;
  settings.turns.seconds = options.seconds;
  settings.turns.warm_up = std::max(settings.turns.warm_up, options.seconds / 4);
  settings.turns.longest_warm_up = std::max(1.0, options.seconds);
  settings.turns.min_samples = options.repeat;
  return settings;
}

// Reports events for products of one shape to the session.
Observer ObserverOf(Session& session, const Shape& shape) {
  return {.begins = [&](const Kernel& kernel) { session.Begin(kernel.name, shape); },
          .done =
              [&](const Kernel& kernel, const absl::StatusOr<GpuMeasurement>& result) {
                if (result.ok()) {
                  session.Keep(EntryOf(*result));
                } else if (absl::IsUnimplemented(result.status())) {
                  // The row does not support this layout.
                  session.Skip(kernel.name, shape, result.status());
                } else {
                  session.Fail(kernel.name, shape, result.status());
                }
              },
          .refused =
              [&](const Kernel& kernel, const Library& library, const absl::Status& why) {
                session.Say(Concat(library.name(), " has nothing for ",
                                   mma::NameOf(*kernel.instruction).view(), " ", NameOf(shape),
                                   ": ", std::string(why.message())));
              }};
}

absl::Status MeasureAll(const Options& options, const Rows& rows, Device& device,
                        const Libraries& libraries, Session& session) {
  GpuSettings settings = SettingsOf(options);
  for (const Shape& shape : options.shapes) {
    const Observer observer = ObserverOf(session, shape);
    for (const Orders& orders : options.orders) {
      settings.orders = orders;
      RETURN_IF_ERROR(MeasureRows(device, rows, shape, settings, libraries, observer));
      RETURN_IF_ERROR(session.WriteFiles());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> RunOnGpu(const Options& options, const Rows& chosen) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevice> device, CudaDevice::Open(*options.gpu));
  ASSIGN_OR_RETURN(const Rows rows, AvailableRows(chosen, device->facts().target));
  const LoadedLibraries libraries = LoadLibraries(options);
  if (options.measures_errors) return CompareErrors(options, *device, libraries.cublaslt.get());
  Session session(options, GpuColumns(), FactsOf(device->facts(), libraries),
                  rows.size() * options.shapes.size() * options.orders.size());
  const absl::Status status = MeasureAll(options, rows, *device, libraries.borrowed(), session);
  RETURN_IF_ERROR(session.WriteFiles());
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(session.End());
  return session.is_right();
}

}  // namespace gemmd::bench
