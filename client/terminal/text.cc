// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace gemmd {
namespace {

absl::string_view Cell(const std::vector<std::string>& row, size_t column) {
  return column < row.size() ? absl::string_view(row[column]) : absl::string_view();
}

// Three significant digits: "1.23", "12.3", "123".
std::string Digits(double value) {
  return absl::StrFormat("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
}

struct Unit {
  double size;
  absl::string_view name;
};

// `value` in the largest unit not above it.
template <size_t kCount>
std::string InUnits(double value, const Unit (&units)[kCount]) {
  const Unit* unit = &units[0];
  for (const Unit& candidate : units) {
    if (value >= candidate.size) unit = &candidate;
  }
  return absl::StrCat(Digits(value / unit->size), " ", unit->name);
}

}  // namespace

std::string TextTable::PrintColumns(const std::vector<size_t>& kept) const {
  std::vector<size_t> widths;
  for (const size_t i : kept) {
    size_t width = columns_[i].heading.size();
    for (const auto& row : rows_) width = std::max(width, Cell(row, i).size());
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < kept.size(); ++i) {
      const absl::string_view cell = cell_of(kept[i]);
      const std::string padding(widths[i] - cell.size(), ' ');
      const bool is_right = columns_[kept[i]].align == Align::kRight;
      absl::StrAppend(&line, i > 0 ? "  " : "", is_right ? padding : "", cell,
                      is_right ? "" : padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  add_line([&](size_t i) { return absl::string_view(columns_[i].heading); });
  for (const auto& row : rows_) {
    add_line([&](size_t i) { return Cell(row, i); });
  }
  return text;
}

std::string FormatNanoseconds(int64_t ns) {
  if (ns < 1000) return absl::StrCat(ns, " ns");
  constexpr Unit kUnits[] = {{1e3, "us"}, {1e6, "ms"}, {1e9, "s"}};
  return InUnits(static_cast<double>(ns), kUnits);
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  constexpr Unit kUnits[] = {{0x1p10, "KiB"}, {0x1p20, "MiB"}, {0x1p30, "GiB"}, {0x1p40, "TiB"}};
  return InUnits(static_cast<double>(bytes), kUnits);
}

std::string FormatCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > (count < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return digits;
}

std::string FormatRate(double operations_per_second) {
  constexpr Unit kUnits[] = {{1e6, "MFLOP/s"}, {1e9, "GFLOP/s"}, {1e12, "TFLOP/s"}};
  return InUnits(operations_per_second, kUnits);
}

std::string FormatOperationRate(int64_t operations, int64_t ns) {
  if (ns <= 0 || operations <= 0) return "";
  return FormatRate(static_cast<double>(operations) / static_cast<double>(ns) * 1e9);
}

namespace {

// Whether a byte continues a UTF-8 character.
bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

absl::string_view CutLine(absl::string_view line, int columns) {
  int seen = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (!Continues(line[i]) && ++seen > columns) return line.substr(0, i);
  }
  return line;
}

std::vector<absl::string_view> LinesOf(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

int WidestLine(absl::string_view text) {
  int widest = 0;
  for (const absl::string_view line : LinesOf(text)) widest = std::max(widest, ColumnsOf(line));
  return widest;
}

}  // namespace

int ColumnsOf(absl::string_view line) {
  return static_cast<int>(
      std::count_if(line.begin(), line.end(), [](char byte) { return !Continues(byte); }));
}

std::string CutText(absl::string_view text, int columns, int lines) {
  const std::vector<absl::string_view> all = LinesOf(text);
  const size_t max = static_cast<size_t>(std::max(1, lines));
  const size_t shown = all.size() <= max ? all.size() : max - 1;
  std::string cut;
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&cut, CutLine(all[i], columns), "\n");
  if (shown == all.size()) return cut;
  const std::string rest = absl::StrCat(all.size() - shown, " more lines");
  return absl::StrCat(cut, CutLine(rest, columns), "\n");
}

std::string FlowText(const std::vector<std::string>& words, absl::string_view gap, int columns) {
  std::string text;
  int used = 0;
  for (const std::string& word : words) {
    const int width = ColumnsOf(word);
    // In 64 bits: `columns` may be the largest int.
    const bool has_room = int64_t{used} + ColumnsOf(gap) + width <= columns;
    if (used > 0) absl::StrAppend(&text, has_room ? gap : "\n");
    used = (used > 0 && has_room ? used + ColumnsOf(gap) : 0) + width;
    absl::StrAppend(&text, word);
  }
  return text + "\n";
}

std::string TextTable::Print(int columns) const {
  std::vector<size_t> kept(columns_.size());
  std::iota(kept.begin(), kept.end(), 0);
  while (true) {
    const std::string text = PrintColumns(kept);
    if (columns == kAnyColumns) return text;
    const auto widest = std::max_element(kept.begin(), kept.end(), [this](size_t x, size_t y) {
      return columns_[x].rank < columns_[y].rank;
    });
    if (WidestLine(text) <= columns || widest == kept.end() || columns_[*widest].rank == 0) {
      return CutText(text, columns, kAnyColumns);
    }
    kept.erase(widest);
  }
}

std::string Sparkline(const std::deque<double>& values, size_t columns) {
  constexpr std::array<const char*, 9> kBars = {"_",      "\u2581", "\u2582", "\u2583", "\u2584",
                                                "\u2585", "\u2586", "\u2587", "\u2588"};
  const size_t first = values.size() > columns ? values.size() - columns : 0;
  double max = 0;
  for (size_t i = first; i < values.size(); ++i) max = std::max(max, values[i]);
  std::string line;
  for (size_t i = first; i < values.size(); ++i) {
    // Any nonzero value is visible.
    const double bar = values[i] > 0 ? std::ceil(8 * values[i] / max) : 0;
    line += kBars[static_cast<size_t>(std::clamp(bar, 0.0, 8.0))];
  }
  return line;
}

std::optional<absl::Duration> ParseTime(absl::string_view text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) return absl::Seconds(seconds);
  absl::Duration time = absl::ZeroDuration();
  if (absl::ParseDuration(text, &time)) return time;
  return std::nullopt;
}

std::string EscapedMarkup(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
  const auto is_refused = [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\t' && c != '\n';
  };
  std::replace_if(escaped.begin(), escaped.end(), is_refused, '?');
  return escaped;
}

void AddSvgText(int x, int y, const char* style, const std::string& text, std::string& svg) {
  absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, style,
                        EscapedMarkup(text));
}

}  // namespace gemmd
