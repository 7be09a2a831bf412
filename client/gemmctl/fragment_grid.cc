// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/fragment_grid.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/difference_report.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

constexpr int kLongestRun = 32;  // Bits of a register.

// Elements that share a cell: `length` of them, one below or beside the other.
struct Run {
  int length = 1;
  bool is_vertical = false;
};

// Whether runs of that length, from every element whose number is a multiple of it, lie in a line
// that starts at a multiple of it.
bool Holds(const v1::DescribeFragmentResponse& fragment, const Run& run) {
  for (int i = 0; i < fragment.entries_size(); ++i) {
    const v1::FragmentEntry& entry = fragment.entries(i);
    const int step = entry.element() % run.length;
    if (step > i) return false;
    const v1::FragmentEntry& first = fragment.entries(i - step);
    const int row = first.row() + (run.is_vertical ? step : 0);
    const int column = first.column() + (run.is_vertical ? 0 : step);
    const int start = run.is_vertical ? first.row() : first.column();
    const bool is_in_line = entry.lane() == first.lane() && entry.row() == row &&
                            entry.column() == column && entry.product() == first.product() &&
                            start % run.length == 0;
    if (!is_in_line) return false;
  }
  const int extent = run.is_vertical ? fragment.rows() : fragment.columns();
  return extent % run.length == 0 && fragment.entries_size() % run.length == 0;
}

Run LongestRun(const v1::DescribeFragmentResponse& fragment) {
  for (int length = kLongestRun; length > 1; length /= 2) {
    for (const bool is_vertical : {false, true}) {
      const Run run = {length, is_vertical};
      if (Holds(fragment, run)) return run;
    }
  }
  return {};
}

absl::Status CheckEntries(const v1::DescribeFragmentResponse& fragment) {
  const int64_t places = int64_t{fragment.rows()} * fragment.columns();
  const auto refuse = [](const char* what) {
    return absl::InternalError(absl::StrCat("fragment: got an answer ", what));
  };
  if (fragment.rows() <= 0 || fragment.columns() <= 0) return refuse("without a matrix");
  if (fragment.entries_size() < places) return refuse("with too few entries");
  const int last_product = static_cast<int>(fragment.entries_size() / places) - 1;
  for (const v1::FragmentEntry& entry : fragment.entries()) {
    const bool is_inside = entry.row() >= 0 && entry.row() < fragment.rows() &&
                           entry.column() >= 0 && entry.column() < fragment.columns() &&
                           entry.product() >= 0 && entry.product() <= last_product &&
                           entry.element() >= 0;
    if (!is_inside) return refuse("with an entry outside of the matrix");
  }
  return absl::OkStatus();
}

// "0", "0..1".
std::vector<std::string> Headings(int extent, int step) {
  std::vector<std::string> headings;
  for (int i = 0; i < extent; i += step) {
    headings.push_back(step == 1 ? absl::StrCat(i) : absl::StrCat(i, "..", i + step - 1));
  }
  return headings;
}

const char* LetterOf(v1::FragmentOperand operand) {
  switch (operand) {
    case v1::FRAGMENT_OPERAND_B: return "b";
    case v1::FRAGMENT_OPERAND_C: return "c";
    case v1::FRAGMENT_OPERAND_D: return "d";
    case v1::FRAGMENT_OPERAND_METADATA: return "group ";
    default: return "a";
  }
}

// "{a0,a1}", "{a0..a7}"; of metadata the bits, "[15:0]".
std::string ElementsText(const v1::DescribeFragmentResponse& fragment, int first, int length) {
  const int last = first + length - 1;
  if (fragment.operand() == v1::FRAGMENT_OPERAND_METADATA) {
    const int bits = fragment.element_bits();
    return absl::StrCat("[", (last + 1) * bits - 1, ":", first * bits, "]");
  }
  const auto one = [&](int element) { return absl::StrCat(LetterOf(fragment.operand()), element); };
  if (length == 1) return absl::StrCat("{", one(first), "}");
  return absl::StrCat("{", one(first), length == 2 ? "," : "..", one(last), "}");
}

// Adds a holder to a cell, which may have some: wmma keeps some elements twice.
void AddHolder(int lane, const std::string& elements, FragmentCell& cell) {
  const std::string prefix = absl::StrCat("T", lane, ":");
  if (cell.label.empty()) {
    cell.lane = lane;
    cell.label = absl::StrCat(prefix, elements);
  } else if (cell.lane == lane) {
    absl::StrAppend(&cell.label, ",", elements);
  } else {
    absl::StrAppend(&cell.label, " ", prefix, elements);
  }
}

// Says of one element where it lies and, where that is known, what it is.
void AddElement(const v1::DescribeFragmentResponse& fragment, const v1::FragmentEntry& entry,
                const FragmentValues* values, FragmentCell& cell) {
  const int first_bit = entry.first_bit() % 32;
  absl::StrAppend(&cell.hint, cell.hint.empty() ? "" : "\n", "[", entry.row(), ", ", entry.column(),
                  "]");
  if (values != nullptr) {
    const uint64_t pattern = values->At(entry.row(), entry.column());
    absl::StrAppend(&cell.hint, " = ", ElementText(values->type, pattern), ", ",
                    PatternText(values->type, pattern));
    cell.values.push_back(absl::StrFormat("%.4g", ElementValue(values->type, pattern)));
  }
  absl::StrAppend(&cell.hint, ": ", LetterOf(fragment.operand()), entry.element(), " of lane ",
                  entry.lane(), ", bits ", first_bit + fragment.container_bits() - 1, " to ",
                  first_bit, " of register ", entry.first_bit() / 32);
}

std::string TitleOf(const v1::DescribeFragmentResponse& fragment, const std::string& name) {
  const v1::Instruction& instruction = fragment.instruction();
  if (fragment.operand() == v1::FRAGMENT_OPERAND_METADATA) {
    return absl::StrCat(name, ": ", fragment.rows(), " rows x ", fragment.columns(), " groups, ",
                        fragment.element_bits(), " bits each, selector ", fragment.selector());
  }
  const auto registers = int64_t{fragment.entries_size()} * fragment.container_bits() / 32 /
                         std::max(1, instruction.lanes());
  std::string title = absl::StrCat(name, ": ", fragment.rows(), " x ", fragment.columns(), " ",
                                   ElementTypeName(fragment.type()), ", ", registers,
                                   registers == 1 ? " register" : " registers", " in each of ",
                                   instruction.lanes(), " lanes");
  const bool is_compressed =
      fragment.operand() == v1::FRAGMENT_OPERAND_A && !instruction.sparsity().empty();
  if (is_compressed)
    absl::StrAppend(&title, ", ", instruction.sparsity(), " of k = ", instruction.k());
  if (fragment.container_bits() > fragment.element_bits()) {
    absl::StrAppend(&title, ", bits ", fragment.container_shift(), " to ",
                    fragment.container_shift() + fragment.element_bits() - 1, " of a byte each");
  }
  return title;
}

}  // namespace

absl::StatusOr<std::vector<FragmentGrid>> MakeGrids(const v1::DescribeFragmentResponse& fragment,
                                                    const std::string& name,
                                                    const FragmentValues* values) {
  const absl::Status status = CheckEntries(fragment);
  if (!status.ok()) return status;
  const Run run = LongestRun(fragment);
  const int row_step = run.is_vertical ? run.length : 1;
  const int column_step = run.is_vertical ? 1 : run.length;
  FragmentGrid blank = {.title = TitleOf(fragment, name),
                        .rows = Headings(fragment.rows(), row_step),
                        .columns = Headings(fragment.columns(), column_step),
                        .cells = {}};
  blank.cells.assign(blank.rows.size(), std::vector<FragmentCell>(blank.columns.size()));
  std::vector<FragmentGrid> grids;
  for (const v1::FragmentEntry& entry : fragment.entries()) {
    const auto product = static_cast<size_t>(entry.product());
    if (grids.size() <= product) grids.resize(product + 1, blank);
    FragmentCell& cell = grids[product].cells[static_cast<size_t>(entry.row() / row_step)]
                                             [static_cast<size_t>(entry.column() / column_step)];
    AddElement(fragment, entry, values, cell);
    if (entry.element() % run.length != 0) continue;
    AddHolder(entry.lane(), ElementsText(fragment, entry.element(), run.length), cell);
  }
  for (size_t i = 0; grids.size() > 1 && i < grids.size(); ++i) {
    absl::StrAppend(&grids[i].title, ", product ", i);
  }
  return grids;
}

}  // namespace gemmd
