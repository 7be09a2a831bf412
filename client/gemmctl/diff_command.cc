// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/product_flags.h"
#include "client/gemmctl/tensor_session.h"
#include "client/matrix/difference.h"
#include "client/matrix/npy.h"
#include "client/output_file.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/status.h"
#include "nlohmann/json.hpp"

namespace gemmd {
namespace {

using Align = TextTable::Align;

constexpr uint64_t kAllBits = ~uint64_t{0};

// The least and the largest distance that one entry of Difference::by_ulps covers.
std::pair<uint64_t, uint64_t> RangeOf(int index) {
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

// The position of a distance on a logarithmic scale from 0 (1 ulp) to 1 (max_ulps). Precondition: 1
// <= ulps <= max_ulps.
double ShadeOf(uint64_t ulps, uint64_t max_ulps) {
  if (max_ulps <= 1) return 0;
  return std::log2(static_cast<double>(ulps)) / std::log2(static_cast<double>(max_ulps));
}

std::string RangesText(const Difference& found) {
  TextTable table({{"ulps", Align::kRight}, {"elements", Align::kRight}});
  for (int i = 0; i < Difference::kUlpRanges; ++i) {
    const int64_t count = found.by_ulps[static_cast<size_t>(i)];
    if (count == 0) continue;
    const auto [first, last] = RangeOf(i);
    table.AddRow({first == last ? absl::StrCat(first) : absl::StrCat(first, " to ", last),
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
    table.AddRow({PlaceText(found.batch, element.batch, element.row, element.column),
                  ElementText(found.type, element.a), ElementText(found.type, element.b),
                  UlpsText(element.distance.ulps),
                  absl::StrFormat("%.3g", element.distance.absolute),
                  absl::StrFormat("%.3g", element.distance.relative),
                  PatternText(found.type, element.a), PatternText(found.type, element.b)});
  }
  return table.Print();
}

// '.' if nothing differs; else '1' to '9' on the logarithmic scale up to max_ulps.
char LetterOf(const DifferenceCell& cell, uint64_t max_ulps) {
  if (cell.differing == 0) return '.';
  if (cell.nan > 0) return 'N';
  if (cell.max_ulps == 0) return '0';
  return static_cast<char>('1' + static_cast<int>(8 * ShadeOf(cell.max_ulps, max_ulps)));
}

std::string MapText(const DifferenceMap& map, const Difference& found) {
  // Letters are twice as high as wide, and a terminal has more columns than rows.
  const DifferenceMap flat = map.Flattened(4);
  std::string text = absl::StrFormat(
      "%seach letter is %d x %d elements: 0 zeros that differ in sign, 1 to 9 the ulps (9: %d), N "
      "NaN\n",
      found.batch == 1 ? "" : absl::StrCat("matrix ", map.batch(), ", "), flat.block_rows(),
      flat.block_columns(), found.max_ulps);
  for (int64_t i = 0; i < flat.down(); ++i) {
    absl::StrAppend(&text, "  ");
    for (int64_t j = 0; j < flat.across(); ++j) {
      text.push_back(LetterOf(flat.At(i, j), found.max_ulps));
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
    const auto [first, last] = RangeOf(i);
    ranges.push_back({{"least_ulps", first}, {"most_ulps", last}, {"elements", count}});
  }
  return ranges;
}

std::string DifferenceText(const Difference& found) {
  std::string text =
      absl::StrCat("a  ", found.a_name, "\nb  ", found.b_name, "\n", ShapeText(found), ": ");
  if (found.differing == 0) {
    return absl::StrCat(text, "the same bits in all ", FormatCount(found.total), " elements\n");
  }
  absl::StrAppend(&text, "other bits in ", Share(found.differing, found.total));
  if (found.batch != 1) absl::StrAppend(&text, " of ", FormatCount(found.matrices), " matrices");
  absl::StrAppend(&text,
                  absl::StrFormat("\nlargest distance: %d ulps, %.3g absolute, %.3g relative",
                                  found.max_ulps, found.max_absolute, found.max_relative));
  if (found.nan > 0) absl::StrAppend(&text, "; ", FormatCount(found.nan), " with NaN on a side");
  absl::StrAppend(&text, "\n\n", RangesText(found));
  if (!found.worst.empty()) absl::StrAppend(&text, "\n", WorstText(found));
  for (const DifferenceMap& map : found.maps) absl::StrAppend(&text, "\n", MapText(map, found));
  return text;
}

nlohmann::ordered_json DifferenceJson(const Difference& found) {
  return {{"a", found.a_name},
          {"b", found.b_name},
          {"same", found.differing == 0},
          {"type", std::string(ElementTypeName(found.type))},
          {"batch", found.batch},
          {"rows", found.rows},
          {"columns", found.columns},
          {"elements", found.total},
          {"differing", found.differing},
          {"nan", found.nan},
          {"matrices", found.matrices},
          {"most_ulps", found.max_ulps},
          {"most_absolute", NumberJson(found.max_absolute)},
          {"most_relative", NumberJson(found.max_relative)},
          {"by_ulps", RangesJson(found)},
          {"worst", WorstJson(found)}};
}

// Lengths in pixels.
constexpr int kMapMargin = 24;
constexpr int kLineHeight = 20;
constexpr int kMinCell = 6;
constexpr int kMapWidth = 512;  // Maps with few blocks have larger cells.
constexpr int kMaxCell = 32;
constexpr int kMinWidth = 720;  // Leaves room for titles.

constexpr int kLegendSteps = 8;

constexpr char kNanFill[] = "#2456d6";
constexpr char kZeroFill[] = "#e3dccb";  // Zeros that differ in sign.

// From light to dark as distances grow, on the logarithmic scale.
std::string FillOf(uint64_t ulps, uint64_t max_ulps) {
  if (ulps == 0) return kZeroFill;
  const int percent = static_cast<int>(100 * ShadeOf(ulps, max_ulps));
  const auto mix = [percent](int from, int to) { return from + (to - from) * percent / 100; };
  return absl::StrFormat("#%02x%02x%02x", mix(253, 120), mix(208, 0), mix(162, 20));
}

std::string FillOf(const DifferenceCell& cell, uint64_t max_ulps) {
  return cell.nan > 0 ? kNanFill : FillOf(cell.max_ulps, max_ulps);
}

int CellSize(const DifferenceMap& map) {
  const int64_t max_extent = std::max<int64_t>({1, map.down(), map.across()});
  return static_cast<int>(std::clamp<int64_t>(kMapWidth / max_extent, kMinCell, kMaxCell));
}

// The tooltip of a block.
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
                   " differ, at most by ", cell.max_ulps, " ulps");
  if (cell.nan > 0) absl::StrAppend(&hint, ", ", FormatCount(cell.nan), " with NaN on a side");
  const auto here = [&](const DifferingElement& element) {
    return element.batch == map.batch() && element.row / map.block_rows() == i &&
           element.column / map.block_columns() == j;
  };
  const auto worst = std::find_if(found.worst.begin(), found.worst.end(), here);
  if (worst == found.worst.end()) return hint;
  return absl::StrCat(
      hint, "; at ", PlaceText(found.batch, worst->batch, worst->row, worst->column), " ",
      ElementText(found.type, worst->a), " and ", ElementText(found.type, worst->b), ", ",
      PatternText(found.type, worst->a), " and ", PatternText(found.type, worst->b));
}

// Draws a map with its upper edge at `top`, and returns its height.
int AddMap(const DifferenceMap& map, const Difference& found, int top, std::string& svg) {
  const int size = CellSize(map);
  const int width = size * static_cast<int>(map.across());
  const int height = size * static_cast<int>(map.down());
  absl::StrAppendFormat(&svg,
                        "<rect class=\"map\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                        kMapMargin, top, width, height);
  for (int64_t i = 0; i < map.down(); ++i) {
    for (int64_t j = 0; j < map.across(); ++j) {
      if (map.At(i, j).differing == 0) continue;
      absl::StrAppendFormat(
          &svg,
          "<rect class=\"cell\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\">"
          "<title>%s</title></rect>\n",
          kMapMargin + size * static_cast<int>(j), top + size * static_cast<int>(i), size, size,
          FillOf(map.At(i, j), found.max_ulps), EscapedMarkup(Hint(map, i, j, found)));
    }
  }
  AddSvgText(kMapMargin, top + height + kLineHeight / 2 + 2, "note",
             absl::StrCat(found.batch == 1 ? "" : absl::StrCat("matrix ", map.batch(), ": "),
                          map.rows(), " rows down, ", map.columns(), " columns across, ",
                          map.block_rows(), " x ", map.block_columns(), " elements in a cell"),
             svg);
  return height + 2 * kLineHeight;
}

int AddLegend(const Difference& found, int top, std::string& svg) {
  int x = kMapMargin;
  const auto add = [&](const std::string& fill, const std::string& label) {
    absl::StrAppendFormat(
        &svg, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x, top, fill);
    if (!label.empty()) AddSvgText(x + 18, top + 7, "note", label, svg);
    x += 18 + 8 * static_cast<int>(label.size());
  };
  if (found.max_ulps > 0) {
    add(FillOf(1, found.max_ulps), "1 ulp");
    for (int i = 1; i < kLegendSteps && found.max_ulps > kLegendSteps; ++i) {
      const double ulps = std::pow(static_cast<double>(found.max_ulps), i / double{kLegendSteps});
      add(FillOf(static_cast<uint64_t>(ulps), found.max_ulps), "");
    }
    if (found.max_ulps > 1) {
      add(FillOf(found.max_ulps, found.max_ulps), absl::StrCat(found.max_ulps, " ulps"));
    }
  }
  if (found.by_ulps[0] > 0) add(kZeroFill, "zeros that differ in sign");
  if (found.nan > 0) add(kNanFill, "NaN on a side");
  return kLineHeight + 8;
}

// The title, the legend and the maps of one comparison.
int AddDifference(const Difference& found, int top, std::string& svg) {
  int y = top + kLineHeight / 2;
  AddSvgText(kMapMargin, y, "title", absl::StrCat(found.a_name, "  and  ", found.b_name), svg);
  y += kLineHeight;
  const std::string what =
      absl::StrCat(ElementTypeName(found.type), ", ", FormatCount(found.total), " elements");
  if (found.differing == 0) {
    AddSvgText(kMapMargin, y, "note", absl::StrCat(what, ": the same bits"), svg);
    return y + 2 * kLineHeight - top;
  }
  AddSvgText(kMapMargin, y, "note",
             absl::StrCat(what, ": other bits in ", FormatCount(found.differing), ", at most ",
                          found.max_ulps, " ulps apart"),
             svg);
  y += kLineHeight;
  y += AddLegend(found, y, svg);
  for (const DifferenceMap& map : found.maps) y += AddMap(map, found, y, svg);
  const int64_t left_out = found.matrices - static_cast<int64_t>(found.maps.size());
  if (left_out > 0) {
    AddSvgText(kMapMargin, y, "note",
               absl::StrCat(FormatCount(left_out), " more matrices differ and are not drawn"), svg);
    y += kLineHeight;
  }
  return y + kLineHeight - top;
}

int WidthOf(const std::vector<Difference>& all) {
  int width = kMinWidth;
  for (const Difference& found : all) {
    for (const DifferenceMap& map : found.maps) {
      width = std::max(width, CellSize(map) * static_cast<int>(map.across()));
    }
  }
  return width + 2 * kMapMargin;
}

constexpr char kMapStyle[] =
    "<style>\n"
    "text { font-family: 'DejaVu Sans Mono', Consolas, monospace; font-size: 12px; fill: #111; "
    "dominant-baseline: central; }\n"
    ".title { font-size: 14px; font-weight: bold; }\n"
    ".note { fill: #555; }\n"
    ".page { fill: #fff; }\n"
    ".map { fill: #f4f4f4; stroke: #999; }\n"
    ".cell:hover { stroke: #000; }\n"
    "</style>\n";

// A self-contained SVG file with the maps of all comparisons, one below the other. Each block of
// elements has a tooltip.
std::string DifferencesSvg(const std::vector<Difference>& all) {
  std::string body;
  int height = kMapMargin;
  for (const Difference& found : all) height += AddDifference(found, height, body);
  const int width = WidthOf(all);
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
      "%d\">\n<title>Differing bits</title>\n%s<rect class=\"page\" width=\"%d\" "
      "height=\"%d\"/>\n%s</svg>\n",
      width, height, width, height, kMapStyle, width, height, body);
}

constexpr char kHead[] =
    "<!DOCTYPE html>\n"
    "<html lang=\"en\">\n"
    "<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<title>gemmctl diff</title>\n"
    "<style>\n"
    "body { font-family: sans-serif; margin: 1em; }\n"
    "svg { max-width: 100%; height: auto; }\n"
    "pre { overflow-x: auto; }\n"
    "</style>\n";

// An HTML page with the picture of DifferencesSvg and the report.
std::string DifferencesPage(const std::vector<Difference>& all) {
  std::string page = absl::StrCat(kHead, "<body>\n", DifferencesSvg(all));
  for (const Difference& found : all) {
    absl::StrAppend(&page, "<pre>\n", EscapedMarkup(DifferenceText(found)), "</pre>\n");
  }
  return page + "</body>\n</html>\n";
}

constexpr char kDiffHelp[] =
    "Compares two files bit by bit; with --chips, A and B are multiplied on each chip and every "
    "other D is compared with the first chip's. A NaN differs from all but the same NaN, +0 from "
    "-0. An ulp is the step from one value of the type to the next. For integers, the distance in "
    "ulps is the difference.\n\n"
    "Exit code: 0 if all bits are the same, 1 if they differ, 2 if nothing could be compared (also "
    "if the server refused), 3 if the server could not be reached.\n\n"
    "Examples:\n"
    "  gemmctl diff D.npy expected.npy\n"
    "  gemmctl diff D8.npy E8.npy --type e4m3 --json | jq .most_ulps\n"
    "  gemmctl diff A.npy B.npy --type bf16 --chips sm_80,sm_90 --html where.html\n"
    "  gemmctl diff --random 256,256,4096 --type f16 --chips cpu,sm_90,cuda:0 --svg where.svg";

struct DiffFlags {
  ProductFlags product;
  std::string chips;  // Empty: files are compared.
  int64_t worst = 10;
  std::string svg_path;
  std::string html_path;
};

PackedMatrix PackedOf(const MappedNpy& npy) {
  const std::span<const std::byte> bytes = npy.data();
  return PackedArray(npy.array(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

CompareOptions OptionsOf(const DiffFlags& flags) {
  return {.max_worst = static_cast<size_t>(flags.worst)};
}

// With files, no product options apply except their types.
absl::Status CheckFileFlags(const ProductFlags& given) {
  ProductFlags plain;
  plain.a_path = given.a_path;
  plain.b_path = given.b_path;
  plain.type = given.type;
  plain.a_type = given.a_type;
  plain.b_type = given.b_type;
  if (given != plain) {
    return absl::InvalidArgumentError(
        "--chips: got none beside options of a product, want the chips to compute it on, such as "
        "--chips sm_80,sm_90; two files are compared with no more than --type");
  }
  if (given.b_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.a_path.empty() ? "A, B" : "B",
                     ": got none, want two .npy files to compare, or a product and --chips"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Difference>> DiffFiles(const DiffFlags& flags, const Console& console) {
  const ProductFlags& product = flags.product;
  RETURN_IF_ERROR(CheckFileFlags(product));
  ASSIGN_OR_RETURN(const auto a,
                   MapArray(product.a_path, TypeOf(product.a_type, TypeOf(product.type)), console));
  ASSIGN_OR_RETURN(const auto b,
                   MapArray(product.b_path, TypeOf(product.b_type, TypeOf(product.type)), console));
  if (product.a_path == "-" || product.b_path == "-") {
    RETURN_IF_ERROR(ExpectEndOfInput(console));
  }
  ASSIGN_OR_RETURN(auto difference, Compare(PackedOf(a), PackedOf(b), OptionsOf(flags)));
  difference.a_name = product.a_path;
  difference.b_name = product.b_path;
  return std::vector<Difference>{std::move(difference)};
}

// "sm_80" is short for "sim:sm_80".
std::string DeviceNamed(absl::string_view name) {
  return absl::StrCat(absl::StartsWith(name, "sm_") ? "sim:" : "", name);
}

PackedMatrix PackedResult(const v1::Matrix& d) {
  return {.type = d.type(),
          .batch = d.batch(),
          .rows = d.rows(),
          .columns = d.columns(),
          .order = d.order(),
          .data = d.data()};
}

std::string NameOf(const v1::MultiplyResponse& response) {
  return absl::StrCat(response.device(), " ", response.kernel());
}

// Computes the product on each device and compares with the first.
absl::StatusOr<std::vector<Difference>> DiffDevices(const DiffFlags& flags,
                                                    v1::MultiplyRequest& request, Client& client) {
  std::optional<MultiplyResult> first;
  std::vector<Difference> all;
  for (const absl::string_view name : absl::StrSplit(flags.chips, ',')) {
    request.set_device(DeviceNamed(name));
    auto response = client.Multiply(request);
    if (!response.ok()) return Prefixed(request.device(), response.status());
    ASSIGN_OR_RETURN(auto result, MultiplyResult::FromResponse(*std::move(response)));
    if (!first.has_value()) {
      first = std::move(result);
      continue;
    }
    ASSIGN_OR_RETURN(auto difference,
                     Compare(PackedResult(first->response().d()),
                             PackedResult(result.response().d()), OptionsOf(flags)));
    difference.a_name = NameOf(first->response());
    difference.b_name = NameOf(result.response());
    all.push_back(std::move(difference));
  }
  return all;
}

absl::Status CheckDeviceFlags(const ProductFlags& product) {
  if (product.device.empty() && product.chip.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--chips: got --device or --chip too, want all names in --chips");
}

// Prints the differences in every requested form.
ExitCode Report(const GlobalFlags& global, const DiffFlags& flags,
                const std::vector<Difference>& all, const Console& console) {
  const bool is_drawn_there = flags.svg_path == "-" || flags.html_path == "-";
  const Console report = ReportBeside(is_drawn_there ? "-" : "", console);
  bool is_same = true;
  for (const Difference& found : all) {
    if (!global.json && &found != &all.front()) report.Print("\n");
    report.Print(global.json ? JsonLine(DifferenceJson(found)) : DifferenceText(found));
    is_same = is_same && found.differing == 0;
  }
  if (!flags.svg_path.empty()) {
    const ExitCode code = WriteOrPrint(flags.svg_path, DifferencesSvg(all), console);
    if (code != ExitCode::kOk) return code;
  }
  if (!flags.html_path.empty()) {
    const ExitCode code = WriteOrPrint(flags.html_path, DifferencesPage(all), console);
    if (code != ExitCode::kOk) return code;
  }
  return is_same ? ExitCode::kOk : ExitCode::kRefused;
}

// Maps the code of a failure: in `diff`, kRefused means that bits differ.
ExitCode WithoutAnswer(ExitCode code) {
  return code == ExitCode::kRefused ? ExitCode::kUsage : code;
}

ExitCode RunDiff(const GlobalFlags& global, const DiffFlags& flags, const Console& console) {
  const absl::Status outputs = CheckOutputFiles(
      global, {{"--svg", flags.svg_path}, {"--html", flags.html_path}}, FilesOf(flags.product));
  if (!outputs.ok()) return FailLocally(console, outputs);
  if (flags.chips.empty()) {
    const auto all = DiffFiles(flags, console);
    return all.ok() ? Report(global, flags, *all, console) : FailLocally(console, all.status());
  }
  if (absl::Status status = CheckDeviceFlags(flags.product); !status.ok()) {
    return FailLocally(console, status);
  }
  auto client = ConnectFor(global, flags.product, console);
  if (!client.ok()) return WithoutAnswer(FailSession(console, client.status()));
  auto request = ProductRequest(flags.product, true, console, &*client);
  if (!request.ok()) return FailLocally(console, request.status());
  const auto all = DiffDevices(flags, *request, *client);
  if (all.ok()) return Report(global, flags, *all, console);
  return WithoutAnswer(FailCall(console, all.status()));
}

// An error text for the value of --chips; empty if it is valid.
std::string RefuseChips(const std::string& text) {
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  bool has_names = names.size() >= 2;
  for (const std::string& name : names) has_names = has_names && !name.empty();
  return has_names ? "" : absl::StrCat("got ", text, ", want two names or more, as sm_80,sm_90");
}

}  // namespace

CommandRun AddDiff(CLI::App& app) {
  auto flags = std::make_unique<DiffFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kDiffHelp));
  SetGroup(app, "Comparison");
  AddOption(
      app, "--chips", flags->chips,
      "Multiply A and B on each of these and compare the results with those of the first: chips "
      "that the server simulates (sm_80 is short for sim:sm_80) or devices of the server")
      .Check(RefuseChips)
      .TypeName("NAME,NAME,...");
  AddOption(app, "--worst", flags->worst, "Number of elements to list, the worst first", 0)
      .ShowDefault()
      .TypeName("N");
  AddOption(app, "--svg", flags->svg_path,
            "File for a heat map in SVG with tooltips; - is standard output")
      .TypeName("PATH");
  AddOption(app, "--html", flags->html_path,
            "File for a page with the heat map and the report; - is standard output")
      .TypeName("PATH");
  AddProductFlags(app, flags->product);
  return RunWith(std::move(flags), RunDiff);
}

}  // namespace gemmd
