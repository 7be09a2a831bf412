// SPDX-License-Identifier: Apache-2.0
#include "server/devices.h"

#include <algorithm>
#include <string_view>

#include "kernels/mma/find.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/host_device.h"

namespace gemmd {
namespace {

constexpr std::string_view kCpu = "cpu";
constexpr std::string_view kEverySimulator = "sim";
constexpr std::string_view kSimulator = "sim:";

std::string NameOfSimulator(mma::Chip chip) { return Concat(kSimulator, mma::NameOf(chip)); }

// The names with `sim` written out.
std::vector<std::string> Expand(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    if (name != kEverySimulator) {
      all.push_back(name);
      continue;
    }
    for (const mma::Chip chip : mma::kAllChips) all.push_back(NameOfSimulator(chip));
  }
  return all;
}

absl::Status Unknown(std::string_view name) {
  std::string known(kCpu);
  for (const mma::Chip chip : mma::kAllChips) known += ", " + NameOfSimulator(chip);
  return absl::InvalidArgumentError(GotWant("devices", name, Concat(known, " or sim")));
}

std::optional<mma::Chip> ChipOf(std::string_view name) {
  if (!name.starts_with(kSimulator)) return std::nullopt;
  return mma::ChipFromName(name.substr(kSimulator.size()));
}

}  // namespace

absl::Status CheckDeviceName(std::string_view name) {
  const bool is_known = name == kCpu || name == kEverySimulator || ChipOf(name).has_value();
  return is_known ? absl::OkStatus() : Unknown(name);
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(
    const std::vector<std::string>& names, int threads) {
  const std::vector<std::string> all = Expand(names);
  if (all.empty()) return absl::InvalidArgumentError(GotWant("devices", "none", "at least one"));
  std::vector<std::unique_ptr<Device>> devices;
  for (auto name = all.begin(); name != all.end(); ++name) {
    if (std::find(all.begin(), name, *name) != name) {
      return absl::InvalidArgumentError(GotWant("devices", Concat(*name, " twice"), "it once"));
    }
    RETURN_IF_ERROR(CheckDeviceName(*name));
    if (*name == kCpu) {
      devices.push_back(std::make_unique<CpuDevice>(threads));
    } else {
      devices.push_back(std::make_unique<SimDevice>(*ChipOf(*name), threads));
    }
  }
  return devices;
}

}  // namespace gemmd
