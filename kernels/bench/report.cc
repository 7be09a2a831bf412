// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "absl/strings/str_format.h"

namespace gemmd::bench {
namespace {

using Json = nlohmann::ordered_json;

Json JsonOf(const Field& field) {
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) {
          return nullptr;
        } else {
          return value;
        }
      },
      field.value);
}

void AddFields(const Fields& fields, Json& object) {
  for (const Field& field : fields) {
    const size_t point = field.name.find('.');
    if (point == std::string::npos) {
      object[field.name] = JsonOf(field);
      continue;
    }
    Json& group = object[field.name.substr(0, point)];  // Null at first.
    if (field.value.index() != 0) group[field.name.substr(point + 1)] = JsonOf(field);
  }
}

// A text with commas or quotes in quotes.
std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + "\"";
}

std::string CsvText(const Field& field) {
  return std::visit(
      [](const auto& value) -> std::string {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::monostate>) {
          return "";
        } else if constexpr (std::is_same_v<Value, std::string>) {
          return Quoted(value);
        } else if constexpr (std::is_same_v<Value, double>) {
          return absl::StrFormat("%.9g", value);
        } else {
          return absl::StrFormat("%d", value);
        }
      },
      field.value);
}

std::string CsvName(const Field& field) {
  std::string name = field.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

// Texts of all fields with commas between them, and the end of the line.
template <typename TextOf>
std::string CsvLine(const Fields& fields, const TextOf& text_of) {
  std::string line;
  for (const Field& field : fields) {
    if (&field != &fields.front()) line += ',';
    line += text_of(field);
  }
  return line + "\n";
}

}  // namespace

std::string ToJson(const Report& report) {
  Json json = Json::object();
  AddFields(report.facts, json);
  json["measurements"] = Json::array();
  for (const Fields& fields : report.measurements) {
    AddFields(fields, json["measurements"].emplace_back(Json::object()));
  }
  return json.dump(1) + "\n";
}

std::string ToCsv(const Report& report) {
  if (report.measurements.empty()) return "";
  std::string text = CsvLine(report.measurements.front(), CsvName);
  for (const Fields& fields : report.measurements) text += CsvLine(fields, CsvText);
  return text;
}

std::string TableHeader(const std::vector<Column>& columns) {
  std::vector<std::string> headings;
  for (const Column& column : columns) headings.push_back(column.heading);
  return TableLine(columns, headings);
}

std::string TableLine(const std::vector<Column>& columns, const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    const int width = columns[i].width;
    // A text after a number stands a little away from it.
    const bool ends_at_the_right = i > 0 && columns[i - 1].width > 0;
    if (i > 0) line += ends_at_the_right && width < 0 ? "  " : " ";
    line += absl::StrFormat("%*s", width, cells[i]);
  }
  return line + "\n";
}

std::string TeraText(double rate) { return absl::StrFormat("%.1f", rate / 1e12); }
std::string GigaText(double rate) { return absl::StrFormat("%.1f", rate / 1e9); }
std::string PercentText(double share) { return absl::StrFormat("%.1f%%", 100 * share); }

}  // namespace gemmd::bench
