// SPDX-License-Identifier: Apache-2.0
#include "server/device/devices.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "server/crossing/shared_memory.h"
#include "server/device/worker_device.h"
#include "server/device/worker_process.h"

namespace gemmd {
namespace {

struct NamedDevice {
  std::string name;
  bool must_be_there = true;  // If false, the device is skipped if it fails with NotFound.
};

// Creates devices of one kind from names.
struct DeviceFactory {
  // Help text: "sim:sm_90 and the like, or sim, every chip that is known".
  std::string_view help;

  // The names and words that it accepts, for the message about an unknown one.
  std::string (*known)();

  // The devices for a name or word; empty if it is not of this kind.
  std::vector<NamedDevice> (*expand)(std::string_view name);

  // Starts creating the device; Device::WaitUntilStarted waits for it. The name comes from
  // `expand`.
  std::unique_ptr<Device> (*make)(std::string_view name, const DeviceOptions& options);

  // What the machine lacks for this kind of device, for the message if one does not start; empty if
  // unknown.
  std::string (*missing)() = [] { return std::string(); };
};

constexpr std::string_view kCpu = "cpu";
constexpr std::string_view kEverySimulator = "sim";
constexpr std::string_view kSimulator = "sim:";

// The name of the simulator of this chip.
std::string SimulatorName(mma::Chip chip) { return Concat(kSimulator, mma::NameOf(chip)); }

std::optional<mma::Chip> ChipOf(std::string_view name) {
  if (!name.starts_with(kSimulator)) return std::nullopt;
  return mma::ChipFromName(name.substr(kSimulator.size()));
}

std::vector<NamedDevice> ExpandCpu(std::string_view name) {
  if (name != kCpu) return {};
  return {{std::string(name)}};
}

// The path of a program in this process's own folder.
std::string Beside(std::string_view program) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path() / program;
}

std::unique_ptr<Device> MakeHostDevice(const Target& target, const DeviceOptions& options) {
  WorkerDeviceOptions host =
      WorkerDeviceOptions::OfHost(target, options.cpu_threads, *SharedMemory::OfProcess());
  host.program = {.binary = Beside("gemmd-host-worker"), .is_confined = options.is_worker_confined};
  host.poisons_freed = options.poisons_freed;
  auto device = std::make_unique<WorkerDevice>(std::move(host));
  // One after the other, because each measures the same processors. MakeDevices returns the error.
  device->WaitUntilStarted().IgnoreError();
  return device;
}

std::unique_ptr<Device> MakeCpu(std::string_view /*name*/, const DeviceOptions& options) {
  Target target = HostTarget();
  target.faulty_rows = options.cpu_faults;
  return MakeHostDevice(target, options);
}

std::string KnownSimulators() {
  std::string known;
  for (const mma::Chip chip : mma::kAllChips) known += SimulatorName(chip) + ", ";
  return known + std::string(kEverySimulator);
}

std::vector<NamedDevice> ExpandSimulators(std::string_view name) {
  if (ChipOf(name).has_value()) return {{std::string(name)}};
  if (name != kEverySimulator) return {};
  std::vector<NamedDevice> all;
  for (const mma::Chip chip : mma::kAllChips) all.push_back({SimulatorName(chip)});
  return all;
}

std::unique_ptr<Device> MakeSimulator(std::string_view name, const DeviceOptions& options) {
  return MakeHostDevice({.kind = DeviceKind::kSim, .chip = *ChipOf(name)}, options);
}

constexpr std::string_view kEveryGpu = "cuda";
constexpr std::string_view kGpu = "cuda:";

// The number in the name of a GPU: decimal digits without a leading zero, at most four.
std::optional<int> OrdinalOf(std::string_view name) {
  if (!name.starts_with(kGpu)) return std::nullopt;
  const std::string_view digits = name.substr(kGpu.size());
  constexpr size_t kMaxDigits = 4;
  const std::optional<int> ordinal = ParseDecimal<int>(digits);
  const bool is_plain =
      digits.size() <= kMaxDigits && ordinal && *ordinal >= 0 && std::to_string(*ordinal) == digits;
  return is_plain ? ordinal : std::nullopt;
}

// GPUs shown by the driver; may exceed those visible to CUDA.
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
  return options.worker_binary.empty() ? Beside("gemmd-worker") : options.worker_binary;
}

std::vector<NamedDevice> ExpandGpus(std::string_view name) {
  if (OrdinalOf(name).has_value()) return {{std::string(name)}};
  if (name != kEveryGpu) return {};
  std::vector<NamedDevice> all;
  // The first one must exist: `cuda` does not mean none.
  const int count = std::max(1, CountGpus());
  for (int i = 0; i < count; ++i) all.push_back({Concat(kGpu, i), i == 0});
  return all;
}

std::unique_ptr<Device> BeginGpu(std::string_view name, const DeviceOptions& options) {
  WorkerDeviceOptions worker;
  worker.program.binary = WorkerBinary(options);
  worker.ordinal = *OrdinalOf(name);
  worker.memory_limit_bytes = options.gpu_memory_bytes;
  worker.program.is_confined = options.is_worker_confined;
  worker.staging_bytes = options.gpu_staging_bytes;
  worker.poisons_freed = options.poisons_freed;
  worker.watchdog_max = options.watchdog_max;
  return std::make_unique<WorkerDevice>(std::move(worker));
}

// The word for every GPU, if this machine has any and there is a worker for them; otherwise empty.
std::string EveryUsableGpu(const DeviceOptions& options) {
  const bool has_worker = access(WorkerBinary(options).c_str(), X_OK) == 0;
  return has_worker && CountGpus() > 0 ? std::string(kEveryGpu) : "";
}

// All kinds of devices.
constexpr DeviceFactory kFactories[] = {
    {.help = "cpu",
     .known = [] { return std::string(kCpu); },
     .expand = ExpandCpu,
     .make = MakeCpu},
    {.help = "sim:sm_90 and so on, which give exactly the bits of a chip's matrix instructions, or "
             "sim, every known chip",
     .known = KnownSimulators,
     .expand = ExpandSimulators,
     .make = MakeSimulator},
    {.help = "cuda:0 and so on, or cuda, every GPU",
     .known = [] { return std::string("cuda:0 and so on, or cuda"); },
     .expand = ExpandGpus,
     .make = BeginGpu,
     .missing = [] { return MissingDriver("/dev"); }},
};

absl::Status Unknown(std::string_view name) {
  std::string known;
  for (const DeviceFactory& factory : kFactories) {
    known += (known.empty() ? "" : ", ") + factory.known();
  }
  return absl::InvalidArgumentError(GotWant("devices", name, known));
}

struct Wanted {
  NamedDevice device;
  const DeviceFactory* factory = nullptr;
};

// The devices for a name.
absl::StatusOr<std::vector<Wanted>> Expand(std::string_view name) {
  std::vector<Wanted> wanted;
  for (const DeviceFactory& factory : kFactories) {
    for (NamedDevice& device : factory.expand(name))
      wanted.push_back({std::move(device), &factory});
  }
  if (wanted.empty()) return Unknown(name);
  return wanted;
}

absl::StatusOr<std::vector<Wanted>> ExpandAll(const std::vector<std::string>& names) {
  std::vector<Wanted> all;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(std::vector<Wanted> some, Expand(name));
    for (Wanted& wanted : some) {
      const std::string& device = wanted.device.name;
      const auto is_same = [&](const Wanted& other) { return other.device.name == device; };
      if (std::any_of(all.begin(), all.end(), is_same)) {
        return absl::InvalidArgumentError(GotWant("devices", Concat(device, " twice"), "it once"));
      }
      all.push_back(std::move(wanted));
    }
  }
  return all;
}

}  // namespace

std::string DeviceNamesHelp() {
  std::string help;
  for (const DeviceFactory& factory : kFactories) {
    help += (help.empty() ? "" : "; ") + std::string(factory.help);
  }
  return help;
}

absl::Status CheckDeviceName(std::string_view name) { return Expand(name).status(); }

std::vector<std::string> DefaultDeviceNames(const DeviceOptions& options) {
  std::vector<std::string> names;
  if (const std::string gpus = EveryUsableGpu(options); !gpus.empty()) names.push_back(gpus);
  names.push_back("cpu");
  names.push_back(SimulatorName(mma::Chip::kSm90));
  return names;
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<Wanted> all,
                   ExpandAll(options.names.empty() ? DefaultDeviceNames(options) : options.names));
  const auto gpus = std::count_if(all.begin(), all.end(), [](const Wanted& wanted) {
    return wanted.device.name.starts_with(kGpu);
  });
  if (gpus < std::ssize(all)) {
    RETURN_IF_ERROR(SharedMemory::OpenForProcess(/*has_tensors=*/gpus == 0));
  }
  std::vector<std::unique_ptr<Device>> devices;
  for (const Wanted& wanted : all) {
    devices.push_back(wanted.factory->make(wanted.device.name, options));
  }
  // All start concurrently; now waits for each.
  for (size_t i = all.size(); i-- > 0;) {
    const auto& [name, must_be_there] = all[i].device;
    const absl::Status started = devices[i]->WaitUntilStarted();
    if (started.ok()) continue;
    if (must_be_there || !absl::IsNotFound(started)) {
      const std::string missing = all[i].factory->missing();
      return absl::Status(started.code(), Concat("device: ", name, " does not start: ",
                                                 std::string(started.message()),
                                                 missing.empty() ? "" : "; ", missing));
    }
    devices.erase(devices.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return devices;
}

std::vector<RowFault> FindCpuFaults(const DeviceOptions& options) {
  const std::vector<std::string>& names = options.names;
  const bool has_cpu = names.empty() || std::find(names.begin(), names.end(), kCpu) != names.end();
  if (!has_cpu) return {};
  return FindFaultyRows(Catalog(DeviceKind::kCpu), HostTarget(), options.cpu_threads);
}

std::string MissingDriver(const std::string& devices) {
  std::error_code error;
  // Device files of the Linux driver, or of WSL's.
  for (const char* const file : {"nvidiactl", "dxg"}) {
    if (std::filesystem::exists(std::filesystem::path(devices) / file, error)) return "";
  }
  return Concat("no NVIDIA driver is loaded, or it is hidden from this container: there is no ",
                devices, "/nvidiactl");
}

}  // namespace gemmd
