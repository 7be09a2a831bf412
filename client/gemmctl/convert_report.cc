// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/convert_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

std::string OrderName(v1::Order order) {
  return order == v1::ORDER_COLUMN_MAJOR ? "column" : "row";
}

std::string TypesText(const ConversionReport& report) {
  return absl::StrCat(ElementTypeName(report.input_type), " -> ",
                      ElementTypeName(report.made.array.type));
}

int64_t ValuesOf(const ConversionReport& report) {
  return CountOf(report.made.array.shape).value_or(0);
}

}  // namespace

ConversionReport ReportOf(const SourceTensor& input, const ConvertedTensor& made) {
  ConversionReport report = {
      .name = input.name, .input_type = input.type, .input_order = input.order};
  report.made.array.type = made.array.type;
  report.made.array.shape = made.array.shape;
  report.made.array.order = made.array.order;
  report.made.counts = made.counts;
  report.made.scale = made.scale;
  report.made.is_packed24 = made.is_packed24;
  report.made.dropped = made.dropped;
  if (made.is_packed24) report.packed_bytes = made.array.data.size();
  return report;
}

std::string ConversionText(const ConversionReport& report) {
  const auto count = [](int64_t values) { return FormatCount(values); };
  const ConvertedTensor& made = report.made;
  TextTable table({{"shape"}, {absl::StrJoin(made.array.shape, " x ")}});
  table.AddRow({"type", TypesText(report)});
  table.AddRow(
      {"order", absl::StrCat(OrderName(report.input_order), " -> ", OrderName(made.array.order))});
  table.AddRow({"values", count(ValuesOf(report))});
  if (made.scale.empty()) {
    table.AddRow({"rounded", count(made.counts.rounded)});
    table.AddRow({"saturated", count(made.counts.saturated)});
    table.AddRow({"became infinite", count(made.counts.infinite)});
    table.AddRow({"NaN", count(made.counts.nan)});
    table.AddRow({"NaN lost", count(made.counts.nan_lost)});
  } else {
    table.AddRow({"factors", count(static_cast<int64_t>(made.scale.size()))});
  }
  if (made.is_packed24) {
    table.AddRow({"bytes of 2:4", count(static_cast<int64_t>(report.packed_bytes))});
    table.AddRow({"dropped", count(made.dropped)});
  }
  const std::string heading = report.name.empty() ? "" : absl::StrCat("tensor ", report.name, "\n");
  return heading + table.Print();
}

nlohmann::ordered_json ConversionJson(const ConversionReport& report) {
  const ConvertedTensor& made = report.made;
  const PackedMatrix view = PackedArray(made.array, "");
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!report.name.empty()) {
    json["name"] = report.name;
    json["shape"] = made.array.shape;
  } else {
    json["batch"] = view.batch;
    json["rows"] = view.rows;
    json["columns"] = view.columns;
  }
  json["input_type"] = std::string(ElementTypeName(report.input_type));
  json["input_order"] = OrderName(report.input_order);
  json["type"] = std::string(ElementTypeName(made.array.type));
  json["order"] = OrderName(made.array.order);
  json["values"] = ValuesOf(report);
  if (made.scale.empty()) {
    json["rounded"] = made.counts.rounded;
    json["saturated"] = made.counts.saturated;
    json["became_infinite"] = made.counts.infinite;
    json["nan"] = made.counts.nan;
    json["nan_lost"] = made.counts.nan_lost;
  } else {
    json["factors"] = made.scale.size();
  }
  if (made.is_packed24) {
    json["packed_bytes"] = report.packed_bytes;
    json["dropped"] = made.dropped;
  }
  return json;
}

std::string ConversionsText(const std::vector<ConversionReport>& reports, int64_t copied) {
  TextTable table({{"tensor"},
                   {"shape"},
                   {"type"},
                   {"rounded", Align::kRight},
                   {"saturated", Align::kRight},
                   {"became infinite", Align::kRight},
                   {"NaN", Align::kRight},
                   {"NaN lost", Align::kRight},
                   {"factors", Align::kRight},
                   {"dropped", Align::kRight}});
  for (const ConversionReport& report : reports) {
    const ConvertedTensor& made = report.made;
    const bool is_counted = made.scale.empty();
    const auto count = [is_counted](int64_t values) {
      return is_counted ? FormatCount(values) : "-";
    };
    table.AddRow({report.name, absl::StrJoin(made.array.shape, " x "), TypesText(report),
                  count(made.counts.rounded), count(made.counts.saturated),
                  count(made.counts.infinite), count(made.counts.nan), count(made.counts.nan_lost),
                  FormatCount(static_cast<int64_t>(made.scale.size())),
                  made.is_packed24 ? FormatCount(made.dropped) : "-"});
  }
  return absl::StrCat(table.Print(), FormatCount(static_cast<int64_t>(reports.size())),
                      " tensors converted, ", FormatCount(copied), " copied as they are\n");
}

}  // namespace gemmd
