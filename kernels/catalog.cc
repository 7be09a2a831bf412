// SPDX-License-Identifier: Apache-2.0
#include "kernels/catalog.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/rows.h"
#include "kernels/sim/rows.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr size_t kNearest = 3;  // Names in the message about an unknown one.

std::vector<Kernel> Join(std::initializer_list<absl::Span<const Kernel>> families) {
  std::vector<Kernel> all;
  for (absl::Span<const Kernel> family : families) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

// Insertions, deletions and replacements that turn one name into the other.
int EditDistance(std::string_view from, std::string_view to) {
  std::vector<int> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 0; j < to.size(); ++j) {
      const int replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string NearestNames(absl::Span<const Kernel> catalog, std::string_view name) {
  struct Near {
    int distance;
    std::string_view name;
  };
  std::vector<Near> all;
  for (const Kernel& kernel : catalog) {
    all.push_back({EditDistance(name, kernel.name), kernel.name});
  }
  const size_t count = std::min(kNearest, all.size());
  std::stable_sort(all.begin(), all.end(),
                   [](const Near& a, const Near& b) { return a.distance < b.distance; });
  std::string text;
  for (size_t i = 0; i < count; ++i) text += Concat(i == 0 ? "" : ", ", all[i].name);
  return text;
}

}  // namespace

std::string_view NameOf(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu: return "cpu";
    case DeviceKind::kSim: return "sim";
  }
  return "";
}

absl::Span<const Kernel> Catalog() {
  static const std::vector<Kernel> kernels = Join({CpuKernels(), SimKernels()});
  return kernels;
}

absl::Span<const Kernel> Catalog(DeviceKind kind) {
  // The kernels of a kind lie together.
  const absl::Span<const Kernel> all = Catalog();
  const auto is_of_kind = [kind](const Kernel& kernel) { return kernel.device_kind == kind; };
  const auto first = std::find_if(all.begin(), all.end(), is_of_kind);
  const auto last = std::find_if_not(first, all.end(), is_of_kind);
  return all.subspan(static_cast<size_t>(first - all.begin()), static_cast<size_t>(last - first));
}

absl::StatusOr<const Kernel*> FindKernel(std::string_view name) {
  return FindKernel(Catalog(), name);
}

absl::StatusOr<const Kernel*> FindKernel(absl::Span<const Kernel> catalog, std::string_view name) {
  for (const Kernel& kernel : catalog) {
    if (kernel.name == name) return &kernel;
  }
  constexpr size_t kShown = 128;  // The name is the caller's and may be of any length.
  name = name.substr(0, kShown);
  return absl::NotFoundError(
      GotWant("kernel", name,
              Concat("a name of the catalogue (nearest: ", NearestNames(catalog, name), ")")));
}

}  // namespace gemmd
