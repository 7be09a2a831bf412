// SPDX-License-Identifier: Apache-2.0
//
// GridText of fragment_drawing.h.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/fragment_drawing.h"

namespace gemmd {
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

// Columns that stand side by side: in as few parts as fit the line, all about equally wide.
size_t ColumnsOfPart(const FragmentGrid& grid, size_t heading_width, size_t cell_width) {
  const size_t room = kLineLength - std::min(kLineLength, heading_width);
  const size_t fitting = std::max<size_t>(1, room / (cell_width + 2));
  const size_t parts = (grid.columns.size() + fitting - 1) / fitting;
  return (grid.columns.size() + parts - 1) / std::max<size_t>(1, parts);
}

// Blanks at the end of the last line go.
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

}  // namespace gemmd
