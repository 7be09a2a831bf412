// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/fragment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/operand_input.h"
#include "client/operand_size.h"
#include "client/output_file.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "kernels/matrix/status.h"

namespace gemmd {

absl::StatusOr<FragmentValues> ValuesOf(const v1::DescribeFragmentResponse& fragment,
                                        const NpyArray& matrix) {
  if (ElementBits(fragment.type()) == 0) {
    return absl::InvalidArgumentError("--values: got a matrix for metadata, want --operand a to d");
  }
  if (matrix.shape.size() != 2 || matrix.shape[0] < fragment.rows() ||
      matrix.shape[1] < fragment.columns()) {
    const std::string got = matrix.shape.size() == 2
                                ? absl::StrCat(matrix.shape[0], " x ", matrix.shape[1])
                                : absl::StrCat("an array of ", matrix.shape.size(), " dimensions");
    return absl::InvalidArgumentError(absl::StrCat("--values: got ", got, ", want a matrix of ",
                                                   fragment.rows(), " x ", fragment.columns(),
                                                   " or more"));
  }
  const bool is_by_columns = matrix.order == v1::ORDER_COLUMN_MAJOR;
  const int64_t line_bytes =
      PackedLineBytes(matrix.type, matrix.shape[is_by_columns ? 0 : 1]).value_or(0);
  FragmentValues values = {.type = fragment.type(), .columns = fragment.columns()};
  for (int64_t row = 0; row < fragment.rows(); ++row) {
    for (int64_t column = 0; column < fragment.columns(); ++column) {
      int64_t line = row;
      int64_t index = column;
      if (is_by_columns) std::swap(line, index);
      const absl::string_view bytes(matrix.data);
      const uint64_t pattern =
          LoadElement(matrix.type, bytes.substr(static_cast<size_t>(line * line_bytes)), index);
      values.patterns.push_back(
          matrix.type == values.type
              ? pattern
              : ElementPattern(values.type, ElementValue(matrix.type, pattern)));
    }
  }
  return values;
}

namespace {

constexpr int kLongestRun = 32;  // Bits of a register.

// `length` elements that share a cell, below or beside each other.
struct Run {
  int length = 1;
  bool is_vertical = false;
};

// Whether every aligned run of that length in the fragment is also an aligned run in the matrix.
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

// "{a0,a1}", "{a0..a7}"; for metadata the bits, "[15:0]".
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

// Adds a lane to a cell. A cell may have several: wmma keeps some elements twice.
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

// Adds the place of one element and, if known, its value.
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
  RETURN_IF_ERROR(CheckEntries(fragment));
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

namespace {

constexpr size_t kLineLength = 120;
constexpr size_t kQuadLanes = 4;

std::string Padding(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ');
}

std::string Coloured(const FragmentCell& cell) {
  constexpr std::array kColours = {31, 32, 33, 34, 35, 36, 91, 94};
  const size_t quad = static_cast<size_t>(cell.lane) / kQuadLanes;
  return absl::StrCat("\x1b[", kColours[quad % kColours.size()], "m", cell.label, "\x1b[0m");
}

size_t CellWidth(const FragmentGrid& grid) {
  size_t width = 0;
  for (const std::string& heading : grid.columns) width = std::max(width, heading.size());
  for (const auto& row : grid.cells) {
    for (const FragmentCell& cell : row) width = std::max(width, cell.label.size());
  }
  return width;
}

size_t HeadingWidth(const FragmentGrid& grid) {
  size_t width = 0;
  for (const std::string& heading : grid.rows) width = std::max(width, heading.size());
  return width;
}

// Columns per part: as few parts as fit the line, all about equally wide.
size_t ColumnsOfPart(const FragmentGrid& grid, size_t heading_width, size_t cell_width) {
  const size_t room = kLineLength - std::min(kLineLength, heading_width);
  const size_t fitting = std::max<size_t>(1, room / (cell_width + 2));
  const size_t parts = (grid.columns.size() + fitting - 1) / fitting;
  return (grid.columns.size() + parts - 1) / std::max<size_t>(1, parts);
}

// Removes trailing blanks from the last line.
void EndLine(std::string& text) {
  text.erase(text.find_last_not_of(' ') + 1);
  text += "\n";
}

}  // namespace

std::string GridText(const FragmentGrid& grid, bool has_colours) {
  const size_t heading_width = HeadingWidth(grid);
  const size_t cell_width = CellWidth(grid);
  const size_t part = ColumnsOfPart(grid, heading_width, cell_width);
  std::string text = grid.title + "\n";
  for (size_t first = 0; first < grid.columns.size(); first += part) {
    const size_t end = std::min(first + part, grid.columns.size());
    absl::StrAppend(&text, "\n", std::string(heading_width, ' '));
    for (size_t j = first; j < end; ++j) {
      absl::StrAppend(&text, "  ", grid.columns[j], Padding(grid.columns[j], cell_width));
    }
    EndLine(text);
    for (size_t i = 0; i < grid.rows.size(); ++i) {
      absl::StrAppend(&text, Padding(grid.rows[i], heading_width), grid.rows[i]);
      for (size_t j = first; j < end; ++j) {
        const FragmentCell& cell = grid.cells[i][j];
        absl::StrAppend(&text, "  ", has_colours ? Coloured(cell) : cell.label,
                        Padding(cell.label, cell_width));
      }
      EndLine(text);
    }
  }
  return text;
}

namespace {

// Lengths in pixels.
constexpr int kGridMargin = 24;
constexpr int kTitleHeight = 40;
constexpr int kGridTitleHeight = 30;
constexpr int kHeadingHeight = 22;
constexpr int kGridGap = 28;  // Below a grid.
constexpr int kCellHeight = 26;
constexpr int kValueHeight = 18;         // Height of a cell's values, below its label.
constexpr size_t kMaxShownValues = 4;    // The tooltip shows all of them.
constexpr int kCellPadding = 14;         // Left and right of a label, together.
constexpr double kCharacterWidth = 7.3;  // In a monospaced font of 12 px, rounded up.
constexpr double kTitleCharacterWidth = 10;

// A hue for each quad of lanes, repeated after eight, and a shade for each lane of the quad: light
// enough for black text.
std::string FillOf(int lane) {
  constexpr std::array<std::array<int, 3>, 8> kHues = {{{214, 39, 40},
                                                        {255, 127, 14},
                                                        {218, 190, 20},
                                                        {44, 160, 44},
                                                        {23, 170, 190},
                                                        {31, 110, 200},
                                                        {130, 90, 200},
                                                        {220, 100, 180}}};
  const auto index = static_cast<size_t>(std::max(lane, 0));
  const std::array<int, 3>& hue = kHues[index / 4 % kHues.size()];
  const int percent = 22 + 13 * static_cast<int>(index % 4);
  const auto mix = [&](int value) { return 255 - (255 - value) * percent / 100; };
  return absl::StrFormat("#%02x%02x%02x", mix(hue[0]), mix(hue[1]), mix(hue[2]));
}

int WidthOf(size_t characters) {
  return static_cast<int>(static_cast<double>(characters) * kCharacterWidth) + kCellPadding;
}

// "1.5 2", "1 2 3 4 ...".
std::string ValuesText(const FragmentCell& cell) {
  const size_t shown = std::min(cell.values.size(), kMaxShownValues);
  std::string text;
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&text, i == 0 ? "" : " ", cell.values[i]);
  return shown < cell.values.size() ? text + " ..." : text;
}

// The sizes of a grid and of its parts.
struct GridLayout {
  int cell_height = kCellHeight;
  int heading_width = 0;
  int cell_width = 0;
  int width = 0;
  int height = 0;
};

GridLayout LayOut(const FragmentGrid& grid) {
  GridLayout layout;
  size_t longest_label = CellWidth(grid);
  for (const auto& row : grid.cells) {
    for (const FragmentCell& cell : row) {
      longest_label = std::max(longest_label, ValuesText(cell).size());
      if (!cell.values.empty()) layout.cell_height = kCellHeight + kValueHeight;
    }
  }
  layout.heading_width = WidthOf(HeadingWidth(grid));
  layout.cell_width = WidthOf(longest_label);
  layout.width = layout.heading_width + layout.cell_width * static_cast<int>(grid.columns.size());
  layout.width = std::max(layout.width, WidthOf(grid.title.size() * 5 / 4));
  layout.height = kGridTitleHeight + kHeadingHeight +
                  layout.cell_height * static_cast<int>(grid.rows.size()) + kGridGap;
  return layout;
}

// Appends an SVG group, so that the tooltip also appears over the texts.
void AddCell(int x, int y, const GridLayout& layout, const FragmentCell& cell, std::string& svg) {
  const int middle = x + layout.cell_width / 2;
  absl::StrAppendFormat(&svg,
                        "<g class=\"cell\"><title>%s</title>\n"
                        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n",
                        EscapedMarkup(cell.hint), x, y, layout.cell_width, layout.cell_height,
                        FillOf(cell.lane));
  AddSvgText(middle, y + kCellHeight / 2, "label", cell.label, svg);
  if (!cell.values.empty()) {
    AddSvgText(middle, y + kCellHeight + kValueHeight / 2 - 4, "value", ValuesText(cell), svg);
  }
  svg += "</g>\n";
}

void AddGrid(const FragmentGrid& grid, const GridLayout& layout, int top, std::string& svg) {
  AddSvgText(kGridMargin, top + kGridTitleHeight / 2, "grid", grid.title, svg);
  const int left = kGridMargin + layout.heading_width;
  const int first_row = top + kGridTitleHeight + kHeadingHeight;
  for (size_t j = 0; j < grid.columns.size(); ++j) {
    const int x = left + layout.cell_width * static_cast<int>(j);
    AddSvgText(x + layout.cell_width / 2, first_row - kHeadingHeight / 2, "heading",
               grid.columns[j], svg);
  }
  for (size_t i = 0; i < grid.rows.size(); ++i) {
    const int y = first_row + layout.cell_height * static_cast<int>(i);
    AddSvgText(kGridMargin + layout.heading_width / 2, y + layout.cell_height / 2, "heading",
               grid.rows[i], svg);
    for (size_t j = 0; j < grid.columns.size(); ++j) {
      const int x = left + layout.cell_width * static_cast<int>(j);
      AddCell(x, y, layout, grid.cells[i][j], svg);
    }
  }
}

constexpr char kGridStyle[] =
    "<style>\n"
    "text { font-family: 'DejaVu Sans Mono', Consolas, monospace; font-size: 12px; fill: #111; "
    "dominant-baseline: central; }\n"
    ".title { font-size: 16px; font-weight: bold; }\n"
    ".grid { font-size: 14px; font-weight: bold; }\n"
    ".heading { fill: #666; text-anchor: middle; }\n"
    ".label { text-anchor: middle; }\n"
    ".value { text-anchor: middle; font-weight: bold; }\n"
    "rect { stroke: #777; stroke-width: 1; }\n"
    ".cell:hover rect { stroke: #000; stroke-width: 2; }\n"
    ".page { fill: #fff; stroke: none; }\n"
    "</style>\n";

}  // namespace

std::string GridsSvg(const std::string& title, const std::vector<FragmentGrid>& grids) {
  int width = static_cast<int>(static_cast<double>(title.size()) * kTitleCharacterWidth);
  int height = kGridMargin + kTitleHeight;
  for (const FragmentGrid& grid : grids) {
    const GridLayout layout = LayOut(grid);
    width = std::max(width, layout.width);
    height += layout.height;
  }
  width += 2 * kGridMargin;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
      "%d\">\n<title>%s</title>\n%s<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n",
      width, height, width, height, EscapedMarkup(title), kGridStyle, width, height);
  AddSvgText(kGridMargin, kGridMargin + kTitleHeight / 4, "title", title, svg);
  int top = kGridMargin + kTitleHeight;
  for (const FragmentGrid& grid : grids) {
    const GridLayout layout = LayOut(grid);
    AddGrid(grid, layout, top, svg);
    top += layout.height;
  }
  return svg + "</svg>\n";
}

namespace {

constexpr char kFragmentHelp[] =
    "T5:{a0,a1} is elements 0 and 1 of A's fragment in lane 5, T5:[15:0] bits 15 to 0 of its "
    "metadata.\n\n"
    "Examples:\n"
    "  gemmctl fragment mma.m16n8k16.f32.f16.f16.f32\n"
    "  gemmctl fragment mma.sp.m16n8k32.f32.f16.f16.f32 --operand metadata --selector 1\n"
    "  gemmctl fragment wgmma.m64n16k16.f32.bf16.bf16 --svg wgmma.svg\n"
    "  gemmctl fragment mma.m16n8k16.f32.f16.f16.f32 --operand a --values A.npy --svg a.svg";

struct FragmentFlags {
  std::string instruction;
  std::string operand;  // Empty: all of them.
  int selector = 0;
  std::string svg_path;     // Empty: text. "-": standard output.
  std::string values_path;  // A matrix whose elements are drawn; empty: none.
};

// An operand to show, and what its drawing is called.
using Shown = std::pair<v1::FragmentOperand, std::string>;
using ShownFragment = std::pair<std::string, v1::DescribeFragmentResponse>;

Shown ShownOperand(const std::string& operand) {
  if (operand == "a") return {v1::FRAGMENT_OPERAND_A, "A"};
  if (operand == "b") return {v1::FRAGMENT_OPERAND_B, "B"};
  if (operand == "c") return {v1::FRAGMENT_OPERAND_C, "C"};
  if (operand == "d") return {v1::FRAGMENT_OPERAND_D, "D"};
  return {v1::FRAGMENT_OPERAND_METADATA, "metadata"};
}

// Every operand after A that has a fragment. C and D share one drawing if they have the same type.
std::vector<Shown> OperandsAfterA(const v1::Instruction& instruction, bool merges_c_and_d) {
  std::vector<Shown> operands;
  if (!instruction.sparsity().empty()) operands.push_back(ShownOperand("metadata"));
  if (instruction.b_registers() > 0) operands.push_back(ShownOperand("b"));
  if (merges_c_and_d && instruction.c_type() == instruction.d_type()) {
    operands.push_back({v1::FRAGMENT_OPERAND_D, "D, and C alike"});
  } else {
    operands.push_back(ShownOperand("c"));
    operands.push_back(ShownOperand("d"));
  }
  return operands;
}

absl::StatusOr<ShownFragment> Ask(Client& client, const FragmentFlags& flags, const Shown& shown) {
  v1::DescribeFragmentRequest request;
  request.set_instruction(flags.instruction);
  request.set_operand(shown.first);
  const bool has_selector = !flags.operand.empty() || shown.first == v1::FRAGMENT_OPERAND_METADATA;
  if (has_selector) request.set_selector(flags.selector);
  ASSIGN_OR_RETURN(auto fragment, client.DescribeFragment(request));
  return ShownFragment(shown.second, std::move(fragment));
}

absl::StatusOr<std::vector<ShownFragment>> AskAll(Client& client, const FragmentFlags& flags,
                                                  bool merges_c_and_d) {
  ASSIGN_OR_RETURN(auto first,
                   Ask(client, flags, ShownOperand(flags.operand.empty() ? "a" : flags.operand)));
  const v1::Instruction instruction = first.second.instruction();
  std::vector<ShownFragment> fragments;
  fragments.push_back(std::move(first));
  if (!flags.operand.empty()) return fragments;
  if (flags.selector != 0 && instruction.sparsity().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--selector: got ", flags.selector, ", want none for a dense instruction"));
  }
  for (const Shown& shown : OperandsAfterA(instruction, merges_c_and_d)) {
    ASSIGN_OR_RETURN(auto next, Ask(client, flags, shown));
    fragments.push_back(std::move(next));
  }
  return fragments;
}

// The elements of the matrix that the flags name, if any.
absl::StatusOr<std::optional<FragmentValues>> ReadValues(
    const FragmentFlags& flags, const v1::DescribeFragmentResponse& fragment,
    const Console& console) {
  if (flags.values_path.empty()) return std::nullopt;
  // A file without a type has the operand's type.
  ASSIGN_OR_RETURN(const auto matrix, ReadArray(flags.values_path, v1::ELEMENT_TYPE_UNSPECIFIED,
                                                console, fragment.type()));
  ASSIGN_OR_RETURN(auto values, ValuesOf(fragment, matrix));
  return values;
}

absl::StatusOr<std::vector<FragmentGrid>> GridsOf(const std::vector<ShownFragment>& fragments,
                                                  const std::optional<FragmentValues>& values) {
  std::vector<FragmentGrid> all;
  for (const ShownFragment& shown : fragments) {
    ASSIGN_OR_RETURN(auto grids,
                     MakeGrids(shown.second, shown.first, values.has_value() ? &*values : nullptr));
    for (FragmentGrid& grid : grids) all.push_back(std::move(grid));
  }
  return all;
}

std::string GridsText(const std::string& title, const std::vector<FragmentGrid>& grids,
                      bool has_colours) {
  std::string text = title + "\n";
  for (const FragmentGrid& grid : grids) absl::StrAppend(&text, "\n", GridText(grid, has_colours));
  return text;
}

ExitCode Draw(const FragmentFlags& flags, const std::vector<ShownFragment>& fragments,
              const Console& console) {
  const auto values = ReadValues(flags, fragments.front().second, console);
  if (!values.ok()) return FailLocally(console, values.status());
  const auto grids = GridsOf(fragments, *values);
  if (!grids.ok()) return FailCall(console, grids.status());
  const v1::Instruction& instruction = fragments.front().second.instruction();
  std::string title = instruction.name();
  if (instruction.b_registers() == 0) title += " (B is read from shared memory)";
  if (flags.svg_path.empty()) {
    console.Print(GridsText(title, *grids, isatty(fileno(console.out)) != 0));
    return ExitCode::kOk;
  }
  return WriteOrPrint(flags.svg_path, GridsSvg(title, *grids), console);
}

ExitCode RunFragment(const GlobalFlags& global, const FragmentFlags& flags,
                     const Console& console) {
  const absl::Status outputs =
      CheckOutputFiles(global, {{"--svg", flags.svg_path}}, {{"--values", flags.values_path}});
  if (!outputs.ok()) return FailLocally(console, outputs);
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto fragments = AskAll(*client, flags, !global.json);
  if (!fragments.ok()) return FailCall(console, fragments.status());
  if (!global.json) return Draw(flags, *fragments, console);
  for (const ShownFragment& shown : *fragments) {
    console.Print(JsonLine(MessageJson(shown.second)));
  }
  return ExitCode::kOk;
}

}  // namespace

CommandRun AddFragment(CLI::App& app) {
  auto flags = std::make_unique<FragmentFlags>();
  SetFooter(app, kFragmentHelp);
  AddOption(app, "NAME", flags->instruction,
            "Name of an instruction; gemmctl instructions lists all names")
      .Require()
      .TypeName("");
  const CommandOption operand =
      AddChoice(app, "--operand", flags->operand, "Operand to draw (default: all)",
                {"a", "b", "c", "d", "metadata"});
  AddOption(app, "--selector", flags->selector, "Sparsity selector of the metadata", 0)
      .ShowDefault()
      .TypeName("S");
  const CommandOption svg =
      AddOption(app, "--svg", flags->svg_path,
                "File for a drawing in SVG, instead of text; - is standard output. The tooltip of "
                "a cell shows the place of each of its elements")
          .TypeName("PATH");
  AddOption(app, "--values", flags->values_path,
            "Draw the elements of this .npy matrix into the cells: its upper left part, rounded to "
            "the operand's type; for a sparse A the elements that are kept")
      .Need(svg)
      .Need(operand)
      .TypeName("PATH");
  return RunWith(std::move(flags), RunFragment);
}

}  // namespace gemmd
