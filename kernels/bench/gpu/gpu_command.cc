// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/gpu_command.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "kernels/bench/gpu/cublaslt.h"
#include "kernels/bench/gpu/cusparselt.h"
#include "kernels/bench/gpu/gpu_report.h"
#include "kernels/bench/gpu/measure_rows.h"
#include "kernels/bench/gpu/open_device.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

// Those that were found, and a line for each that was not.
struct LoadedLibraries {
  std::unique_ptr<CublasLt> cublaslt;
  std::unique_ptr<CusparseLt> cusparselt;

  Libraries borrowed() const { return {cublaslt.get(), cusparselt.get()}; }
};

template <typename SomeLibrary>
std::unique_ptr<SomeLibrary> TryLoad(const char* name, const std::string& path) {
  absl::StatusOr<std::unique_ptr<SomeLibrary>> library = SomeLibrary::Load(path);
  if (library.ok()) return *std::move(library);
  std::cerr << "no " << name << ": " << library.status().message() << "\n";
  return nullptr;
}

LoadedLibraries LoadLibraries(const GpuOptions& options) {
  if (!options.uses_libraries) return {};
  return {TryLoad<CublasLt>("cuBLASLt", options.cublaslt),
          TryLoad<CusparseLt>("cuSPARSELt", options.cusparselt)};
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[16] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%d", &utc);
  return text;
}

GpuReport EmptyReport(const GpuOptions& options, const DeviceFacts& facts,
                      const LoadedLibraries& libraries) {
  GpuReport report;
  report.gpu = facts.name;
  report.chip = mma::NameOf(facts.target.chip);
  report.multiprocessors = facts.target.multiprocessors;
  report.max_sm_clock_mhz = facts.max_sm_clock_mhz;
  report.driver = facts.driver;
  report.cuda = facts.cuda;
  if (libraries.cublaslt != nullptr) report.cublaslt = libraries.cublaslt->version();
  if (libraries.cusparselt != nullptr) report.cusparselt = libraries.cusparselt->version();
  report.commit = options.commit;
  report.date = Today();
  report.command = options.command;
  return report;
}

// In one step, so that a run that is stopped leaves a whole file.
absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  std::error_code error;
  if (std::ofstream(partial) << text) {
    std::filesystem::rename(partial, path, error);
  } else {
    error = std::make_error_code(std::errc::io_error);
  }
  if (!error) return absl::OkStatus();
  return absl::NotFoundError(Concat("cannot write ", path, ": ", error.message()));
}

// Prints and keeps what MeasureRows tells.
class Session {
 public:
  Session(const GpuOptions& options, GpuReport report)
      : options_(options), report_(std::move(report)) {}

  void Begin(const Kernel& kernel, const Shape& shape) const {
    if (!options_.shows_progress) return;
    std::fprintf(stderr, "\r\033[K%d of %d: %s %s ...", done_ + 1, Total(),
                 std::string(kernel.name).c_str(), NameOf(shape).c_str());
  }

  void Finish(const Kernel& kernel, const Shape& shape, absl::StatusOr<GpuMeasurement> result) {
    ClearProgress();
    ++done_;
    if (!result.ok()) {
      std::cerr << kernel.name << " " << NameOf(shape) << ": " << result.status().message() << "\n";
      is_right_ &= absl::IsUnimplemented(result.status());  // A layout that the row does not take.
      return;
    }
    is_right_ &= result->is_right();
    if (options_.json != "-") std::cout << GpuTableLine(*result) << std::flush;
    report_.measurements.push_back(*std::move(result));
  }

  void Refuse(const Library& library, const Kernel& kernel, const Shape& shape,
              const absl::Status& why) const {
    ClearProgress();
    std::cerr << library.name() << " has nothing for " << mma::NameOf(*kernel.instruction).view()
              << " " << NameOf(shape) << ": " << why.message() << "\n";
  }

  absl::Status WriteFiles() const {
    if (!options_.save.empty()) RETURN_IF_ERROR(WriteFile(options_.save, ToJson(report_)));
    if (!options_.csv.empty()) RETURN_IF_ERROR(WriteFile(options_.csv, ToCsv(report_)));
    if (options_.json.empty() || options_.json == "-") return absl::OkStatus();
    return WriteFile(options_.json, ToJson(report_));
  }

  const GpuReport& report() const { return report_; }
  bool is_right() const { return is_right_; }

 private:
  int Total() const {
    return static_cast<int>(options_.rows.size() * options_.shapes.size() * options_.orders.size());
  }
  void ClearProgress() const {
    if (options_.shows_progress) std::fputs("\r\033[K", stderr);
  }

  const GpuOptions& options_;
  GpuReport report_;
  int done_ = 0;
  bool is_right_ = true;
};

// The rows that the chip has; how many it has not is said once.
absl::StatusOr<std::vector<const Kernel*>> AvailableRows(const std::vector<const Kernel*>& rows,
                                                         const Target& target) {
  std::vector<const Kernel*> available;
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

absl::Status MeasureAll(const GpuOptions& options, Device& device, const Libraries& libraries,
                        Session& session) {
  GpuSettings settings;
  settings.leading_dimension_offset = options.leading_dimension_offset;
  settings.turns.seconds = options.seconds;
  settings.turns.warm_up = std::max(settings.turns.warm_up, options.seconds / 4);
  settings.turns.longest_warm_up = std::max(1.0, options.seconds);
  settings.turns.min_samples = options.min_samples;
  for (const Shape& shape : options.shapes) {
    for (const Orders& orders : options.orders) {
      settings.orders = orders;
      const Observer observer = {
          .begins = [&](const Kernel& kernel) { session.Begin(kernel, shape); },
          .done =
              [&](const Kernel& kernel, absl::StatusOr<GpuMeasurement> result) {
                session.Finish(kernel, shape, std::move(result));
              },
          .refused = [&](const Kernel& kernel, const Library& library,
                         const absl::Status& why) { session.Refuse(library, kernel, shape, why); }};
      RETURN_IF_ERROR(MeasureRows(device, options.rows, shape, settings, libraries, observer));
      RETURN_IF_ERROR(session.WriteFiles());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> RunOnGpu(const GpuOptions& given) {
  GpuOptions options = given;
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenGpu(options.device));
  ASSIGN_OR_RETURN(options.rows, AvailableRows(options.rows, device->facts().target));
  const LoadedLibraries libraries = LoadLibraries(options);
  Session session(options, EmptyReport(options, device->facts(), libraries));
  if (options.json != "-") std::cout << GpuTableHeader();
  const absl::Status status = MeasureAll(options, *device, libraries.borrowed(), session);
  RETURN_IF_ERROR(session.WriteFiles());
  RETURN_IF_ERROR(status);
  if (options.json == "-") std::cout << ToJson(session.report());
  return session.is_right();
}

}  // namespace gemmd::bench
