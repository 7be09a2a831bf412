// SPDX-License-Identifier: Apache-2.0
#include "server/device/host_factory.h"

#include <algorithm>
#include <optional>

#include "kernels/catalog.h"
#include "kernels/cpu/host.h"
#include "kernels/mma/find.h"
#include "kernels/text.h"
#include "server/device/host_device.h"

namespace gemmd {
namespace {

constexpr std::string_view kCpu = "cpu";
constexpr std::string_view kEverySimulator = "sim";
constexpr std::string_view kSimulator = "sim:";

std::optional<mma::Chip> ChipOf(std::string_view name) {
  if (!name.starts_with(kSimulator)) return std::nullopt;
  return mma::ChipFromName(name.substr(kSimulator.size()));
}

std::vector<NamedDevice> ExpandCpu(std::string_view name) {
  if (name != kCpu) return {};
  return {{std::string(name)}};
}

std::unique_ptr<Device> MakeCpu(std::string_view /*name*/, const DeviceOptions& options) {
  Target target = HostTarget();
  target.faulty_rows = options.cpu_faults;
  return std::make_unique<HostDevice>(target, options.cpu_threads, options.poisons_freed);
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
  return std::make_unique<HostDevice>(Target{.kind = DeviceKind::kSim, .chip = *ChipOf(name)},
                                      options.cpu_threads, options.poisons_freed);
}

}  // namespace

std::string SimulatorName(mma::Chip chip) { return Concat(kSimulator, mma::NameOf(chip)); }

std::vector<RowFault> FindCpuFaults(const DeviceOptions& options) {
  const std::vector<std::string>& names = options.names;
  const bool has_cpu = names.empty() || std::find(names.begin(), names.end(), kCpu) != names.end();
  if (!has_cpu) return {};
  return FindFaultyRows(Catalog(DeviceKind::kCpu), HostTarget(), options.cpu_threads);
}

const DeviceFactory kCpuFactory = {
    .help = "cpu", .known = [] { return std::string(kCpu); }, .expand = ExpandCpu, .make = MakeCpu};

const DeviceFactory kSimulatorFactory = {
    .help =
        "sim:sm_90 and the like, which give the very bits of a chip's matrix instructions, or sim, "
        "every chip that is known",
    .known = KnownSimulators,
    .expand = ExpandSimulators,
    .make = MakeSimulator};

}  // namespace gemmd
