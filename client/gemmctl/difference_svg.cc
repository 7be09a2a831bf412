// SPDX-License-Identifier: Apache-2.0
//
// DifferencesSvg of difference_drawing.h.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/difference_drawing.h"
#include "client/terminal/markup.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

// Lengths in pixels.
constexpr int kMargin = 24;
constexpr int kLineHeight = 20;
constexpr int kLeastCell = 6;
constexpr int kMapWidth = 512;  // Maps with few blocks are as wide, too: their cells are larger.
constexpr int kMostCell = 32;
constexpr int kLeastWidth = 720;  // So that titles have room.

constexpr int kLegendSteps = 8;

constexpr char kNanFill[] = "#2456d6";
constexpr char kZeroFill[] = "#e3dccb";  // Zeros of other signs.

// From light to dark as distances grow: equal steps are equal factors.
std::string FillOf(uint64_t ulps, uint64_t most_ulps) {
  if (ulps == 0) return kZeroFill;
  const int percent = static_cast<int>(100 * ShadeOf(ulps, most_ulps));
  const auto mix = [percent](int from, int to) { return from + (to - from) * percent / 100; };
  return absl::StrFormat("#%02x%02x%02x", mix(253, 120), mix(208, 0), mix(162, 20));
}

std::string FillOf(const DifferenceCell& cell, uint64_t most_ulps) {
  return cell.nan > 0 ? kNanFill : FillOf(cell.most_ulps, most_ulps);
}

int CellSize(const DifferenceMap& map) {
  const int64_t most = std::max<int64_t>({1, map.down(), map.across()});
  return static_cast<int>(std::clamp<int64_t>(kMapWidth / most, kLeastCell, kMostCell));
}

void AddText(int x, int y, const char* style, const std::string& text, std::string& svg) {
  absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, style,
                        EscapedMarkup(text));
}

// What a block tells under the pointer.
std::string Hint(const DifferenceMap& map, int64_t i, int64_t j, const Difference& found) {
  const auto range = [](int64_t block, int64_t size, int64_t extent) {
    const int64_t first = block * size;
    const int64_t last = std::min(first + size, extent) - 1;
    return first == last ? absl::StrCat(first) : absl::StrCat(first, " to ", last);
  };
  const DifferenceCell& cell = map.At(i, j);
  std::string hint =
      absl::StrCat("rows ", range(i, map.block_rows(), map.rows()), ", columns ",
                   range(j, map.block_columns(), map.columns()), ": ", FormatCount(cell.differing),
                   " differ, at most by ", cell.most_ulps, " ulps");
  if (cell.nan > 0) absl::StrAppend(&hint, ", ", FormatCount(cell.nan), " with NaN on a side");
  const auto here = [&](const DifferingElement& element) {
    return element.batch == map.batch() && element.row / map.block_rows() == i &&
           element.column / map.block_columns() == j;
  };
  const auto worst = std::find_if(found.worst.begin(), found.worst.end(), here);
  if (worst == found.worst.end()) return hint;
  return absl::StrCat(hint, "; at ", PlaceText(found, *worst), " ",
                      ElementText(found.type, worst->a), " and ", ElementText(found.type, worst->b),
                      ", ", PatternText(found.type, worst->a), " and ",
                      PatternText(found.type, worst->b));
}

// Draws a map whose upper edge is at `top`, and gives the height that it takes.
int AddMap(const DifferenceMap& map, const Difference& found, int top, std::string& svg) {
  const int size = CellSize(map);
  const int width = size * static_cast<int>(map.across());
  const int height = size * static_cast<int>(map.down());
  absl::StrAppendFormat(&svg,
                        "<rect class=\"map\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                        kMargin, top, width, height);
  for (int64_t i = 0; i < map.down(); ++i) {
    for (int64_t j = 0; j < map.across(); ++j) {
      if (map.At(i, j).differing == 0) continue;
      absl::StrAppendFormat(
          &svg,
          "<rect class=\"cell\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\">"
          "<title>%s</title></rect>\n",
          kMargin + size * static_cast<int>(j), top + size * static_cast<int>(i), size, size,
          FillOf(map.At(i, j), found.most_ulps), EscapedMarkup(Hint(map, i, j, found)));
    }
  }
  AddText(kMargin, top + height + kLineHeight / 2 + 2, "note",
          absl::StrCat(found.batch == 1 ? "" : absl::StrCat("matrix ", map.batch(), ": "),
                       map.rows(), " rows down, ", map.columns(), " columns across, ",
                       map.block_rows(), " x ", map.block_columns(), " elements in a cell"),
          svg);
  return height + 2 * kLineHeight;
}

int AddLegend(const Difference& found, int top, std::string& svg) {
  int x = kMargin;
  const auto add = [&](const std::string& fill, const std::string& label) {
    absl::StrAppendFormat(
        &svg, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x, top, fill);
    if (!label.empty()) AddText(x + 18, top + 7, "note", label, svg);
    x += 18 + 8 * static_cast<int>(label.size());
  };
  if (found.most_ulps > 0) {
    add(FillOf(1, found.most_ulps), "1 ulp");
    for (int i = 1; i < kLegendSteps && found.most_ulps > kLegendSteps; ++i) {
      const double ulps = std::pow(static_cast<double>(found.most_ulps), i / double{kLegendSteps});
      add(FillOf(static_cast<uint64_t>(ulps), found.most_ulps), "");
    }
    if (found.most_ulps > 1) {
      add(FillOf(found.most_ulps, found.most_ulps), absl::StrCat(found.most_ulps, " ulps"));
    }
  }
  if (found.by_ulps[0] > 0) add(kZeroFill, "zeros of other signs");
  if (found.nan > 0) add(kNanFill, "NaN on a side");
  return kLineHeight + 8;
}

// The title, the legend and the maps of one comparison.
int AddDifference(const NamedDifference& named, int top, std::string& svg) {
  const Difference& found = named.difference;
  int y = top + kLineHeight / 2;
  AddText(kMargin, y, "title", absl::StrCat(named.a, "  and  ", named.b), svg);
  y += kLineHeight;
  const std::string what =
      absl::StrCat(ElementTypeName(found.type), ", ", FormatCount(found.total), " elements");
  if (found.differing == 0) {
    AddText(kMargin, y, "note", absl::StrCat(what, ": the same bits"), svg);
    return y + 2 * kLineHeight - top;
  }
  AddText(kMargin, y, "note",
          absl::StrCat(what, ": other bits in ", FormatCount(found.differing), ", at most ",
                       found.most_ulps, " ulps apart"),
          svg);
  y += kLineHeight;
  y += AddLegend(found, y, svg);
  for (const DifferenceMap& map : found.maps) y += AddMap(map, found, y, svg);
  const int64_t left_out = found.matrices - static_cast<int64_t>(found.maps.size());
  if (left_out > 0) {
    AddText(kMargin, y, "note",
            absl::StrCat(FormatCount(left_out), " more matrices differ and are not drawn"), svg);
    y += kLineHeight;
  }
  return y + kLineHeight - top;
}

int WidthOf(const std::vector<NamedDifference>& all) {
  int width = kLeastWidth;
  for (const NamedDifference& named : all) {
    for (const DifferenceMap& map : named.difference.maps) {
      width = std::max(width, CellSize(map) * static_cast<int>(map.across()));
    }
  }
  return width + 2 * kMargin;
}

constexpr char kStyle[] =
    "<style>\n"
    "text { font-family: 'DejaVu Sans Mono', Consolas, monospace; font-size: 12px; fill: #111; "
    "dominant-baseline: central; }\n"
    ".title { font-size: 14px; font-weight: bold; }\n"
    ".note { fill: #555; }\n"
    ".page { fill: #fff; }\n"
    ".map { fill: #f4f4f4; stroke: #999; }\n"
    ".cell:hover { stroke: #000; }\n"
    "</style>\n";

}  // namespace

std::string DifferencesSvg(const std::vector<NamedDifference>& all) {
  std::string body;
  int height = kMargin;
  for (const NamedDifference& named : all) height += AddDifference(named, height, body);
  const int width = WidthOf(all);
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
      "%d\">\n<title>Differing bits</title>\n%s<rect class=\"page\" width=\"%d\" "
      "height=\"%d\"/>\n%s</svg>\n",
      width, height, width, height, kStyle, width, height, body);
}

}  // namespace gemmd
