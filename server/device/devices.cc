// SPDX-License-Identifier: Apache-2.0
#include "server/device/devices.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/cpu/host.h"
#include "kernels/mma/find.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/host_device.h"
#include "server/device/worker_device.h"

namespace gemmd {
namespace {

constexpr std::string_view kCpu = "cpu";
constexpr std::string_view kEveryGpu = "cuda";
constexpr std::string_view kGpu = "cuda:";
constexpr std::string_view kEverySimulator = "sim";
constexpr std::string_view kSimulator = "sim:";

std::string NameOfSimulator(mma::Chip chip) { return Concat(kSimulator, mma::NameOf(chip)); }

absl::Status Unknown(std::string_view name) {
  std::string known(kCpu);
  for (const mma::Chip chip : mma::kAllChips) known += ", " + NameOfSimulator(chip);
  return absl::InvalidArgumentError(
      GotWant("devices", name, Concat(known, ", sim, cuda:0 and so on, or cuda")));
}

std::optional<mma::Chip> ChipOf(std::string_view name) {
  if (!name.starts_with(kSimulator)) return std::nullopt;
  return mma::ChipFromName(name.substr(kSimulator.size()));
}

// The number in the name of a GPU: decimal digits without a leading zero, at most four.
std::optional<int> OrdinalOf(std::string_view name) {
  if (!name.starts_with(kGpu)) return std::nullopt;
  const std::string_view digits = name.substr(kGpu.size());
  constexpr size_t kMostDigits = 4;
  int ordinal = 0;
  const char* const end = digits.data() + digits.size();
  const auto [parsed, error] = std::from_chars(digits.data(), end, ordinal);
  if (digits.empty() || digits.size() > kMostDigits || parsed != end || error != std::errc() ||
      std::to_string(ordinal) != digits || ordinal < 0) {
    return std::nullopt;
  }
  return ordinal;
}

// As the driver shows them; more than CUDA has where some are hidden from it.
int CountGpus() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    constexpr std::string_view kPrefix = "nvidia";
    const bool is_gpu = name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
                        std::all_of(name.begin() + kPrefix.size(), name.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
    if (is_gpu) ++count;
  }
  return count;
}

std::string WorkerBinary(const DeviceOptions& options) {
  if (!options.worker_binary.empty()) return options.worker_binary;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path() / "gemmd-worker";
}

struct Wanted {
  std::string name;
  bool must_be_there = true;
};

// The names with those of many written out.
std::vector<Wanted> Expand(const std::vector<std::string>& names) {
  std::vector<Wanted> all;
  for (const std::string& name : names) {
    if (name == kEverySimulator) {
      for (const mma::Chip chip : mma::kAllChips) all.push_back({NameOfSimulator(chip)});
    } else if (name == kEveryGpu) {
      // The first one must be there: who asks for all of them does not mean none.
      const int count = std::max(1, CountGpus());
      for (int i = 0; i < count; ++i) all.push_back({Concat(kGpu, i), i == 0});
    } else {
      all.push_back({name});
    }
  }
  return all;
}

std::unique_ptr<WorkerDevice> BeginGpu(const DeviceOptions& options, int ordinal) {
  WorkerDeviceOptions worker;
  worker.command.binary = WorkerBinary(options);
  worker.command.ordinal = ordinal;
  worker.command.memory_limit_bytes = options.gpu_memory_bytes;
  worker.staging_bytes = options.gpu_staging_bytes;
  return std::make_unique<WorkerDevice>(std::move(worker));
}

}  // namespace

absl::Status CheckDeviceName(std::string_view name) {
  const bool is_known = name == kCpu || name == kEverySimulator || name == kEveryGpu ||
                        ChipOf(name).has_value() || OrdinalOf(name).has_value();
  return is_known ? absl::OkStatus() : Unknown(name);
}

std::vector<std::string> DefaultDeviceNames(const DeviceOptions& options) {
  std::vector<std::string> names = {std::string(kCpu), NameOfSimulator(mma::Chip::kSm90)};
  const bool has_worker = access(WorkerBinary(options).c_str(), X_OK) == 0;
  if (has_worker && CountGpus() > 0) names.insert(names.begin(), std::string(kEveryGpu));
  return names;
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const DeviceOptions& options) {
  const std::vector<Wanted> all =
      Expand(options.names.empty() ? DefaultDeviceNames(options) : options.names);
  std::vector<std::unique_ptr<Device>> devices;
  for (auto wanted = all.begin(); wanted != all.end(); ++wanted) {
    const std::string& name = wanted->name;
    if (std::any_of(all.begin(), wanted, [&](const Wanted& w) { return w.name == name; })) {
      return absl::InvalidArgumentError(GotWant("devices", Concat(name, " twice"), "it once"));
    }
    RETURN_IF_ERROR(CheckDeviceName(name));
    if (const std::optional<int> ordinal = OrdinalOf(name)) {
      devices.push_back(BeginGpu(options, *ordinal));
    } else if (name == kCpu) {
      devices.push_back(std::make_unique<HostDevice>(HostTarget(), options.cpu_threads));
    } else {
      devices.push_back(std::make_unique<HostDevice>(
          Target{.kind = DeviceKind::kSim, .chip = *ChipOf(name)}, options.cpu_threads));
    }
  }
  // All workers start at once; now each is waited for.
  for (size_t i = all.size(); i-- > 0;) {
    auto* const gpu = dynamic_cast<WorkerDevice*>(devices[i].get());
    const absl::Status started = gpu == nullptr ? absl::OkStatus() : gpu->WaitUntilStarted();
    if (started.ok()) continue;
    if (all[i].must_be_there || !absl::IsNotFound(started)) {
      return absl::Status(
          started.code(),
          Concat("device: ", all[i].name, " does not start: ", std::string(started.message())));
    }
    devices.erase(devices.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return devices;
}

}  // namespace gemmd
