// SPDX-License-Identifier: Apache-2.0
//
// GridsSvg of fragment_drawing.h.
#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/fragment_drawing.h"
#include "client/terminal/markup.h"

namespace gemmd {
namespace {

// Lengths in pixels.
constexpr int kMargin = 24;
constexpr int kTitleHeight = 40;
constexpr int kGridTitleHeight = 30;
constexpr int kHeadingHeight = 22;
constexpr int kGap = 28;  // Below a grid.
constexpr int kCellHeight = 26;
constexpr int kValueHeight = 18;         // A cell's values, below its label, are so high.
constexpr size_t kShownValues = 4;       // The pointer shows all of them.
constexpr int kCellPadding = 14;         // Left and right of a label, together.
constexpr double kCharacterWidth = 7.3;  // In a monospaced font of 12 px, rounded up.
constexpr double kTitleCharacterWidth = 10;

struct Colour {
  int red;
  int green;
  int blue;
};

// A hue for each quad of lanes, repeated after eight, and a shade for each lane of the quad: light
// enough for black text.
std::string FillOf(int lane) {
  constexpr std::array<Colour, 8> kHues = {
      Colour{214, 39, 40},  Colour{255, 127, 14}, Colour{218, 190, 20}, Colour{44, 160, 44},
      Colour{23, 170, 190}, Colour{31, 110, 200}, Colour{130, 90, 200}, Colour{220, 100, 180}};
  const auto index = static_cast<size_t>(std::max(lane, 0));
  const Colour& hue = kHues[index / 4 % kHues.size()];
  const int percent = 22 + 13 * static_cast<int>(index % 4);
  const auto mix = [&](int value) { return 255 - (255 - value) * percent / 100; };
  return absl::StrFormat("#%02x%02x%02x", mix(hue.red), mix(hue.green), mix(hue.blue));
}

int WidthOf(size_t characters) {
  return static_cast<int>(static_cast<double>(characters) * kCharacterWidth) + kCellPadding;
}

// "1.5 2", "1 2 3 4 ...".
std::string ValuesText(const FragmentCell& cell) {
  const size_t shown = std::min(cell.values.size(), kShownValues);
  std::string text;
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&text, i == 0 ? "" : " ", cell.values[i]);
  return shown < cell.values.size() ? text + " ..." : text;
}

// The places of a grid and of its parts.
struct GridLayout {
  int cell_height = kCellHeight;
  int heading_width = 0;
  int cell_width = 0;
  int width = 0;
  int height = 0;
};

GridLayout LayOut(const FragmentGrid& grid) {
  GridLayout layout;
  size_t longest_row_heading = 0;
  for (const std::string& heading : grid.rows) {
    longest_row_heading = std::max(longest_row_heading, heading.size());
  }
  size_t longest_label = 0;
  for (const std::string& heading : grid.columns) {
    longest_label = std::max(longest_label, heading.size());
  }
  for (const auto& row : grid.cells) {
    for (const FragmentCell& cell : row) {
      longest_label = std::max({longest_label, cell.label.size(), ValuesText(cell).size()});
      if (!cell.values.empty()) layout.cell_height = kCellHeight + kValueHeight;
    }
  }
  layout.heading_width = WidthOf(longest_row_heading);
  layout.cell_width = WidthOf(longest_label);
  layout.width = layout.heading_width + layout.cell_width * static_cast<int>(grid.columns.size());
  layout.width = std::max(layout.width, WidthOf(grid.title.size() * 5 / 4));
  layout.height = kGridTitleHeight + kHeadingHeight +
                  layout.cell_height * static_cast<int>(grid.rows.size()) + kGap;
  return layout;
}

void AddText(int x, int y, const char* style, const std::string& text, std::string& svg) {
  absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, style,
                        EscapedMarkup(text));
}

// A group, so that the pointer finds what it tells over the texts, too.
void AddCell(int x, int y, const GridLayout& layout, const FragmentCell& cell, std::string& svg) {
  const int middle = x + layout.cell_width / 2;
  absl::StrAppendFormat(&svg,
                        "<g class=\"cell\"><title>%s</title>\n"
                        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n",
                        EscapedMarkup(cell.hint), x, y, layout.cell_width, layout.cell_height,
                        FillOf(cell.lane));
  AddText(middle, y + kCellHeight / 2, "label", cell.label, svg);
  if (!cell.values.empty()) {
    AddText(middle, y + kCellHeight + kValueHeight / 2 - 4, "value", ValuesText(cell), svg);
  }
  svg += "</g>\n";
}

void AddGrid(const FragmentGrid& grid, const GridLayout& layout, int top, std::string& svg) {
  AddText(kMargin, top + kGridTitleHeight / 2, "grid", grid.title, svg);
  const int left = kMargin + layout.heading_width;
  const int first_row = top + kGridTitleHeight + kHeadingHeight;
  for (size_t j = 0; j < grid.columns.size(); ++j) {
    const int x = left + layout.cell_width * static_cast<int>(j);
    AddText(x + layout.cell_width / 2, first_row - kHeadingHeight / 2, "heading", grid.columns[j],
            svg);
  }
  for (size_t i = 0; i < grid.rows.size(); ++i) {
    const int y = first_row + layout.cell_height * static_cast<int>(i);
    AddText(kMargin + layout.heading_width / 2, y + layout.cell_height / 2, "heading", grid.rows[i],
            svg);
    for (size_t j = 0; j < grid.columns.size(); ++j) {
      const int x = left + layout.cell_width * static_cast<int>(j);
      AddCell(x, y, layout, grid.cells[i][j], svg);
    }
  }
}

constexpr char kStyle[] =
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
  int height = kMargin + kTitleHeight;
  for (const FragmentGrid& grid : grids) {
    const GridLayout layout = LayOut(grid);
    width = std::max(width, layout.width);
    height += layout.height;
  }
  width += 2 * kMargin;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
      "%d\">\n<title>%s</title>\n%s<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n",
      width, height, width, height, EscapedMarkup(title), kStyle, width, height);
  AddText(kMargin, kMargin + kTitleHeight / 4, "title", title, svg);
  int top = kMargin + kTitleHeight;
  for (const FragmentGrid& grid : grids) {
    const GridLayout layout = LayOut(grid);
    AddGrid(grid, layout, top, svg);
    top += layout.height;
  }
  return svg + "</svg>\n";
}

}  // namespace gemmd
