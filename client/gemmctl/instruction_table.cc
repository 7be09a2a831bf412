// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/instruction_table.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/gemmctl/widths.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;
using Columns = std::vector<TextTable::Column>;

std::string TypesText(const v1::Instruction& instruction) {
  return absl::StrCat(
      ElementTypeName(instruction.d_type()), " <- ", ElementTypeName(instruction.a_type()), " x ",
      ElementTypeName(instruction.b_type()), " + ", ElementTypeName(instruction.c_type()));
}

// A row for many widths of wgmma leaves N open.
std::string ShapeText(const v1::Instruction& instruction, bool leaves_width_open) {
  const bool is_open = leaves_width_open && instruction.lanes() == 128;
  const std::string n = is_open ? "N" : absl::StrCat(instruction.n());
  return absl::StrCat(instruction.m(), " x ", n, " x ", instruction.k());
}

TableRow CommonCells(const v1::Instruction& instruction, bool is_collapsed) {
  return {instruction.name(), ShapeText(instruction, is_collapsed), TypesText(instruction),
          instruction.sparsity()};
}

std::string SupportWord(v1::InstructionSupport support) {
  switch (support) {
    case v1::INSTRUCTION_SUPPORT_NATIVE: return "native";
    case v1::INSTRUCTION_SUPPORT_EMULATED: return "emulated";
    case v1::INSTRUCTION_SUPPORT_UNAVAILABLE: return "unavailable";
    default: return "unknown";
  }
}

std::string SupportLetter(v1::InstructionSupport support) {
  switch (support) {
    case v1::INSTRUCTION_SUPPORT_NATIVE: return "N";
    case v1::INSTRUCTION_SUPPORT_EMULATED: return "e";
    case v1::INSTRUCTION_SUPPORT_UNAVAILABLE: return "-";
    default: return "?";
  }
}

// Registers of one lane. A row with an open N leaves out C and D, whose registers vary with N.
std::string RegistersText(const v1::Instruction& instruction, bool leaves_width_open) {
  if (instruction.lanes() == 128 && leaves_width_open) {
    return absl::StrCat("a ", instruction.a_registers());
  }
  std::string text = absl::StrCat("a ", instruction.a_registers());
  if (instruction.b_registers() > 0) absl::StrAppend(&text, ", b ", instruction.b_registers());
  return absl::StrCat(text, ", c ", instruction.c_registers(), ", d ", instruction.d_registers());
}

Columns ColumnsFor(const v1::ListInstructionsResponse& instructions, bool is_of_one_chip) {
  Columns columns = {{"instruction"}, {"m x n x k"}, {"types"}, {"sparse"}};
  if (is_of_one_chip) {
    columns.insert(columns.end(), {{"registers"}, {"support"}, {"lowering"}});
  } else if (!instructions.instructions().empty()) {
    for (const v1::ChipSupport& chip : instructions.instructions(0).chips()) {
      columns.push_back({std::string(absl::StripPrefix(chip.chip(), "sm_")), Align::kRight});
    }
  }
  return columns;
}

// How many of a family a chip has.
struct Count {
  int64_t native = 0;
  int64_t emulated = 0;
};

std::string CountText(const Count& count) {
  if (count.native == 0 && count.emulated == 0) return "-";
  if (count.emulated == 0) return FormatCount(count.native);
  const std::string emulated = absl::StrCat(FormatCount(count.emulated), " emulated");
  return count.native == 0 ? emulated : absl::StrCat(FormatCount(count.native), " + ", emulated);
}

// Families in the order of the list.
struct FamilyCount {
  std::string family;
  int64_t total = 0;
  std::map<std::string, Count> by_chip;
};

std::vector<FamilyCount> CountFamilies(const v1::ListInstructionsResponse& instructions) {
  std::vector<FamilyCount> families;
  for (const v1::Instruction& instruction : instructions.instructions()) {
    if (families.empty() || families.back().family != instruction.family()) {
      families.push_back({instruction.family(), 0, {}});
    }
    FamilyCount& family = families.back();
    ++family.total;
    for (const v1::ChipSupport& chip : instruction.chips()) {
      Count& count = family.by_chip[chip.chip()];
      if (chip.support() == v1::INSTRUCTION_SUPPORT_NATIVE) ++count.native;
      if (chip.support() == v1::INSTRUCTION_SUPPORT_EMULATED) ++count.emulated;
    }
  }
  return families;
}

}  // namespace

std::string InstructionTable(const v1::ListInstructionsResponse& instructions,
                             const std::string& chip, bool is_complete) {
  const bool is_collapsed = !is_complete;
  std::vector<TableRow> rows;
  for (const v1::Instruction& instruction : instructions.instructions()) {
    TableRow row = CommonCells(instruction, is_collapsed);
    if (!chip.empty()) row.push_back(RegistersText(instruction, is_collapsed));
    for (const v1::ChipSupport& known : instruction.chips()) {
      if (chip.empty()) {
        row.push_back(SupportLetter(known.support()));
      } else if (known.chip() == chip) {
        row.insert(row.end(), {SupportWord(known.support()), known.lowering()});
      }
    }
    rows.push_back(std::move(row));
  }
  TextTable table(ColumnsFor(instructions, !chip.empty()));
  for (TableRow& row : is_collapsed ? CollapseWidths(rows) : rows) table.AddRow(std::move(row));
  std::string text = table.Print();
  absl::StrAppend(&text, "\n", FormatCount(instructions.instructions_size()), " instructions.");
  if (chip.empty()) {
    text += " Chips sm_70 and so on: N native, e emulated by ptxas, - unavailable.";
  }
  return text + "\n";
}

std::string FamilyTable(const v1::ListInstructionsResponse& instructions) {
  Columns columns = {{"family"}, {"instructions", Align::kRight}};
  if (!instructions.instructions().empty()) {
    for (const v1::ChipSupport& chip : instructions.instructions(0).chips()) {
      columns.push_back({chip.chip(), Align::kRight});
    }
  }
  TextTable table(columns);
  for (const FamilyCount& family : CountFamilies(instructions)) {
    TableRow row = {family.family, FormatCount(family.total)};
    for (size_t i = 2; i < columns.size(); ++i) {
      const auto count = family.by_chip.find(columns[i].heading);
      row.push_back(CountText(count == family.by_chip.end() ? Count() : count->second));
    }
    table.AddRow(std::move(row));
  }
  return table.Print();
}

}  // namespace gemmd
