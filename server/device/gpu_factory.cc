// SPDX-License-Identifier: Apache-2.0
#include "server/device/gpu_factory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "kernels/text.h"
#include "server/device/worker_device.h"

namespace gemmd {
namespace {

constexpr std::string_view kEveryGpu = "cuda";
constexpr std::string_view kGpu = "cuda:";

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

std::vector<NamedDevice> ExpandGpus(std::string_view name) {
  if (OrdinalOf(name).has_value()) return {{std::string(name)}};
  if (name != kEveryGpu) return {};
  std::vector<NamedDevice> all;
  // The first one must be there: who asks for all of them does not mean none.
  const int count = std::max(1, CountGpus());
  for (int i = 0; i < count; ++i) all.push_back({Concat(kGpu, i), i == 0});
  return all;
}

std::unique_ptr<Device> BeginGpu(std::string_view name, const DeviceOptions& options) {
  WorkerDeviceOptions worker;
  worker.command.binary = WorkerBinary(options);
  worker.command.ordinal = *OrdinalOf(name);
  worker.command.memory_limit_bytes = options.gpu_memory_bytes;
  worker.command.tensor_limit_bytes = options.gpu_tensor_bytes;
  worker.command.is_confined = options.is_worker_confined;
  worker.staging_bytes = options.gpu_staging_bytes;
  worker.poisons_freed = options.poisons_freed;
  worker.restarts.rest_ns = absl::ToInt64Nanoseconds(options.worker_rest);
  worker.canary_interval = options.canary_interval;
  worker.watchdog_most = options.watchdog_most;
  return std::make_unique<WorkerDevice>(std::move(worker));
}

}  // namespace

const DeviceFactory kGpuFactory = {.help = "cuda:0 and the like, or cuda, every GPU",
                                   .known = [] { return std::string("cuda:0 and so on, or cuda"); },
                                   .expand = ExpandGpus,
                                   .make = BeginGpu,
                                   .missing = [] { return MissingDriver("/dev"); }};

std::string MissingDriver(const std::string& devices) {
  std::error_code error;
  // What the driver of Linux makes, or WSL's.
  for (const char* const file : {"nvidiactl", "dxg"}) {
    if (std::filesystem::exists(std::filesystem::path(devices) / file, error)) return "";
  }
  return Concat("no NVIDIA driver is loaded, or it is hidden from this container: there is no ",
                devices, "/nvidiactl");
}

std::string EveryUsableGpu(const DeviceOptions& options) {
  const bool has_worker = access(WorkerBinary(options).c_str(), X_OK) == 0;
  return has_worker && CountGpus() > 0 ? std::string(kEveryGpu) : "";
}

}  // namespace gemmd
