// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/kernel_table.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/widths.h"
#include "client/terminal/text_table.h"
#include "client/terminal/type_names.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

std::string ComputedIn(const v1::Kernel& kernel) {
  const std::string a = TypeText(kernel.compute_type_a());
  const std::string b = TypeText(kernel.compute_type_b());
  return a == b ? a : absl::StrCat(a, ", ", b);
}

// The names of the devices that run it.
std::vector<std::string> DevicesOf(const v1::Kernel& kernel) {
  std::vector<std::string> devices;
  for (const v1::KernelAvailability& at : kernel.availability()) {
    if (at.available()) devices.push_back(at.device());
  }
  return devices;
}

bool IsSelected(const v1::Kernel& kernel, const v1::Device* device, bool is_complete) {
  if (device == nullptr) return is_complete || !DevicesOf(kernel).empty();
  if (is_complete) return kernel.device_kind() == device->kind();
  const std::vector<std::string> devices = DevicesOf(kernel);
  return std::find(devices.begin(), devices.end(), device->name()) != devices.end();
}

}  // namespace

v1::ListKernelsResponse SelectKernels(const v1::ListKernelsResponse& kernels,
                                      const v1::Device* device, bool is_complete) {
  v1::ListKernelsResponse selected;
  for (const v1::Kernel& kernel : kernels.kernels()) {
    if (IsSelected(kernel, device, is_complete)) *selected.add_kernels() = kernel;
  }
  return selected;
}

std::string KernelTable(const v1::ListKernelsResponse& kernels, bool is_complete) {
  std::vector<TableRow> rows;
  for (const v1::Kernel& kernel : kernels.kernels()) {
    const std::vector<std::string> devices = DevicesOf(kernel);
    rows.push_back({kernel.name(), TypeText(kernel.a_type()), TypeText(kernel.b_type()),
                    TypeText(kernel.accumulation_type()), ComputedIn(kernel), kernel.provider(),
                    devices.empty() ? "-" : absl::StrJoin(devices, ", ")});
  }
  TextTable table(
      {{"kernel"}, {"A"}, {"B"}, {"accumulation"}, {"computed in"}, {"provider"}, {"runs on"}});
  for (TableRow& row : is_complete ? rows : CollapseWidths(rows)) table.AddRow(std::move(row));
  return table.Print();
}

}  // namespace gemmd
