// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/kernel_table.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/text_table.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

std::string TypeText(v1::ElementType type) { return std::string(ElementTypeName(type)); }

std::string ComputedIn(const v1::Kernel& kernel) {
  const std::string a = TypeText(kernel.compute_type_a());
  const std::string b = TypeText(kernel.compute_type_b());
  return a == b ? a : absl::StrCat(a, ", ", b);
}

std::vector<std::string> CommonCells(const v1::Kernel& kernel) {
  return {kernel.name(),
          TypeText(kernel.a_type()),
          TypeText(kernel.b_type()),
          TypeText(kernel.accumulation_type()),
          ComputedIn(kernel),
          kernel.provider()};
}

const std::vector<TextTable::Column>& CommonColumns() {
  static const std::vector<TextTable::Column> columns = {
      {"kernel"}, {"A"}, {"B"}, {"accumulation"}, {"computed in"}, {"provider"}};
  return columns;
}

}  // namespace

std::string KernelTableMarkdown(const v1::ListKernelsResponse& kernels) {
  std::vector<TextTable::Column> columns = CommonColumns();
  columns.push_back({"how"});
  TextTable table(columns);
  for (const v1::Kernel& kernel : kernels.kernels()) {
    std::vector<std::string> cells = CommonCells(kernel);
    cells.push_back(kernel.description());
    table.AddRow(std::move(cells));
  }
  return table.PrintMarkdown();
}

std::string KernelTable(const v1::ListKernelsResponse& kernels) {
  std::vector<TextTable::Column> columns = CommonColumns();
  columns.push_back({"runs on"});
  TextTable table(columns);
  for (const v1::Kernel& kernel : kernels.kernels()) {
    std::vector<std::string> cells = CommonCells(kernel);
    std::vector<std::string> devices;
    for (const v1::KernelAvailability& at : kernel.availability()) {
      if (at.available()) devices.push_back(at.device());
    }
    cells.push_back(devices.empty() ? "-" : absl::StrJoin(devices, ", "));
    table.AddRow(std::move(cells));
  }
  return table.Print();
}

}  // namespace gemmd
