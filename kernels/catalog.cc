// SPDX-License-Identifier: Apache-2.0
#include "kernels/catalog.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/cpu/rows.h"
#include "kernels/cuda/rows.h"
#include "kernels/nearest_names.h"
#include "kernels/sim/rows.h"

namespace gemmd {
namespace {

std::vector<Kernel> Join(std::initializer_list<absl::Span<const Kernel>> families) {
  std::vector<Kernel> all;
  for (absl::Span<const Kernel> family : families) {
    all.insert(all.end(), family.begin(), family.end());
  }
  std::map<DeviceKind, size_t> kernels_of_kind;
  for (Kernel& kernel : all) kernel.position = kernels_of_kind[kernel.device_kind]++;
  return all;
}

std::vector<std::string_view> NamesOf(absl::Span<const Kernel> kernels) {
  std::vector<std::string_view> names;
  names.reserve(kernels.size());
  for (const Kernel& kernel : kernels) names.push_back(kernel.name);
  return names;
}

}  // namespace

std::string_view NameOf(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu: return "cpu";
    case DeviceKind::kSim: return "sim";
    case DeviceKind::kCuda: return "cuda";
  }
  return "";
}

absl::Span<const Kernel> Catalog() {
  static const std::vector<Kernel> kernels = Join({CpuKernels(), SimKernels(), CudaKernels()});
  return kernels;
}

absl::Span<const Kernel> Catalog(DeviceKind kind) {
  // The kernels of one kind lie together.
  const absl::Span<const Kernel> all = Catalog();
  const auto is_of_kind = [kind](const Kernel& kernel) { return kernel.device_kind == kind; };
  const auto first = std::find_if(all.begin(), all.end(), is_of_kind);
  const auto last = std::find_if_not(first, all.end(), is_of_kind);
  return all.subspan(static_cast<size_t>(first - all.begin()), static_cast<size_t>(last - first));
}

absl::StatusOr<const Kernel*> FindKernel(std::string_view name) {
  static const NameIndex index(NamesOf(Catalog()));
  if (const std::optional<size_t> position = index.Find(name)) return &Catalog()[*position];
  return index.Unknown("kernel", name, "a name of the catalogue");
}

}  // namespace gemmd
