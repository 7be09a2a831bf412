// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/difference_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

constexpr uint64_t kAllBits = ~uint64_t{0};

// The distances of a range of Difference::by_ulps.
struct UlpRange {
  uint64_t first;
  uint64_t last;
};

UlpRange RangeOf(int index) {
  if (index == 0) return {0, 0};
  return {uint64_t{1} << (index - 1), kAllBits >> (Difference::kUlpRanges - 1 - index)};
}

std::string ShapeText(const Difference& found) {
  return absl::StrCat(found.batch == 1 ? "" : absl::StrCat(FormatCount(found.batch), " of "),
                      found.rows, " x ", found.columns, " ", ElementTypeName(found.type));
}

std::string Share(int64_t part, int64_t all) {
  return absl::StrFormat("%s of %s elements (%.3g %%)", FormatCount(part), FormatCount(all),
                         100 * static_cast<double>(part) / static_cast<double>(all));
}

std::string UlpsText(const std::optional<uint64_t>& ulps) {
  return ulps.has_value() ? absl::StrCat(*ulps) : "NaN";
}

std::string RangesText(const Difference& found) {
  TextTable table({{"ulps", Align::kRight}, {"elements", Align::kRight}});
  for (int i = 0; i < Difference::kUlpRanges; ++i) {
    const int64_t count = found.by_ulps[static_cast<size_t>(i)];
    if (count == 0) continue;
    const UlpRange range = RangeOf(i);
    table.AddRow({range.first == range.last ? absl::StrCat(range.first)
                                            : absl::StrCat(range.first, " to ", range.last),
                  FormatCount(count)});
  }
  if (found.nan > 0) table.AddRow({"NaN", FormatCount(found.nan)});
  return table.Print();
}

std::string WorstText(const Difference& found) {
  TextTable table({{"worst at"},
                   {"a", Align::kRight},
                   {"b", Align::kRight},
                   {"ulps", Align::kRight},
                   {"absolute", Align::kRight},
                   {"relative", Align::kRight},
                   {"bits of a", Align::kRight},
                   {"bits of b", Align::kRight}});
  for (const DifferingElement& element : found.worst) {
    table.AddRow({PlaceText(found, element), ElementText(found.type, element.a),
                  ElementText(found.type, element.b), UlpsText(element.distance.ulps),
                  absl::StrFormat("%.3g", element.distance.absolute),
                  absl::StrFormat("%.3g", element.distance.relative),
                  PatternText(found.type, element.a), PatternText(found.type, element.b)});
  }
  return table.Print();
}

// "." where nothing differs; '1' to '9' for 1 ulp to ever more, as the largest distance has them.
char LetterOf(const DifferenceCell& cell, uint64_t most_ulps) {
  if (cell.differing == 0) return '.';
  if (cell.nan > 0) return 'N';
  if (cell.most_ulps == 0) return '0';
  return static_cast<char>('1' + static_cast<int>(8 * ShadeOf(cell.most_ulps, most_ulps)));
}

std::string MapText(const DifferenceMap& map, const Difference& found) {
  // Letters are twice as high as wide, and a terminal has more columns than rows.
  const DifferenceMap flat = map.Flattened(4);
  std::string text = absl::StrFormat(
      "%seach letter is %d x %d elements: 0 zeros of other signs, 1 to 9 the ulps (9: %d), N NaN\n",
      found.batch == 1 ? "" : absl::StrCat("matrix ", map.batch(), ", "), flat.block_rows(),
      flat.block_columns(), found.most_ulps);
  for (int64_t i = 0; i < flat.down(); ++i) {
    absl::StrAppend(&text, "  ");
    for (int64_t j = 0; j < flat.across(); ++j) {
      text.push_back(LetterOf(flat.At(i, j), found.most_ulps));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

nlohmann::ordered_json WorstJson(const Difference& found) {
  nlohmann::ordered_json worst = nlohmann::ordered_json::array();
  for (const DifferingElement& element : found.worst) {
    nlohmann::ordered_json json = {{"batch", element.batch},
                                   {"row", element.row},
                                   {"column", element.column},
                                   {"a", NumberJson(ElementValue(found.type, element.a))},
                                   {"b", NumberJson(ElementValue(found.type, element.b))},
                                   {"a_bits", PatternText(found.type, element.a)},
                                   {"b_bits", PatternText(found.type, element.b)},
                                   {"ulps", nullptr},
                                   {"absolute", NumberJson(element.distance.absolute)},
                                   {"relative", NumberJson(element.distance.relative)}};
    if (element.distance.ulps.has_value()) json["ulps"] = *element.distance.ulps;
    worst.push_back(std::move(json));
  }
  return worst;
}

nlohmann::ordered_json RangesJson(const Difference& found) {
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  for (int i = 0; i < Difference::kUlpRanges; ++i) {
    const int64_t count = found.by_ulps[static_cast<size_t>(i)];
    if (count == 0) continue;
    const UlpRange range = RangeOf(i);
    ranges.push_back({{"least_ulps", range.first}, {"most_ulps", range.last}, {"elements", count}});
  }
  return ranges;
}

}  // namespace

double ShadeOf(uint64_t ulps, uint64_t most_ulps) {
  if (most_ulps <= 1) return 0;
  return std::log2(static_cast<double>(ulps)) / std::log2(static_cast<double>(most_ulps));
}

std::string PatternText(v1::ElementType type, uint64_t pattern) {
  return absl::StrFormat("0x%0*x", (ElementBits(type) + 3) / 4, pattern);
}

std::string ElementText(v1::ElementType type, uint64_t pattern) {
  const int digits = ElementBits(type) == 64 ? 17 : 9;
  return absl::StrFormat("%.*g", digits, ElementValue(type, pattern));
}

std::string PlaceText(const Difference& difference, const DifferingElement& element) {
  return absl::StrCat("[", difference.batch == 1 ? "" : absl::StrCat(element.batch, ", "),
                      element.row, ", ", element.column, "]");
}

std::string DifferenceText(const NamedDifference& named) {
  const Difference& found = named.difference;
  std::string text = absl::StrCat("a  ", named.a, "\nb  ", named.b, "\n", ShapeText(found), ": ");
  if (found.differing == 0) {
    return absl::StrCat(text, "the same bits in all ", FormatCount(found.total), " elements\n");
  }
  absl::StrAppend(&text, "other bits in ", Share(found.differing, found.total));
  if (found.batch != 1) absl::StrAppend(&text, " of ", FormatCount(found.matrices), " matrices");
  absl::StrAppend(&text,
                  absl::StrFormat("\nlargest distance: %d ulps, %.3g absolute, %.3g relative",
                                  found.most_ulps, found.most_absolute, found.most_relative));
  if (found.nan > 0) absl::StrAppend(&text, "; ", FormatCount(found.nan), " with NaN on a side");
  absl::StrAppend(&text, "\n\n", RangesText(found));
  if (!found.worst.empty()) absl::StrAppend(&text, "\n", WorstText(found));
  for (const DifferenceMap& map : found.maps) absl::StrAppend(&text, "\n", MapText(map, found));
  return text;
}

nlohmann::ordered_json DifferenceJson(const NamedDifference& named) {
  const Difference& found = named.difference;
  return {{"a", named.a},
          {"b", named.b},
          {"same", found.differing == 0},
          {"type", std::string(ElementTypeName(found.type))},
          {"batch", found.batch},
          {"rows", found.rows},
          {"columns", found.columns},
          {"elements", found.total},
          {"differing", found.differing},
          {"nan", found.nan},
          {"matrices", found.matrices},
          {"most_ulps", found.most_ulps},
          {"most_absolute", NumberJson(found.most_absolute)},
          {"most_relative", NumberJson(found.most_relative)},
          {"by_ulps", RangesJson(found)},
          {"worst", WorstJson(found)}};
}

}  // namespace gemmd
