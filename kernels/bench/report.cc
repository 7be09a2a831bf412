// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "kernels/matrix/text.h"
#include "kernels/option/resources.h"

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
    // Leaves space between a number and a following text.
    const bool ends_at_the_right = i > 0 && columns[i - 1].width > 0;
    if (i > 0) line += ends_at_the_right && width < 0 ? "  " : " ";
    line += absl::StrFormat("%*s", width, cells[i]);
  }
  return line + "\n";
}

std::string TeraText(double rate) { return absl::StrFormat("%.1f", rate / 1e12); }
std::string GigaText(double rate) { return absl::StrFormat("%.1f", rate / 1e9); }
std::string PercentText(double share) { return absl::StrFormat("%.1f%%", 100 * share); }

namespace {

namespace fs = std::filesystem;

absl::Status Failed(const std::string& path) {
  const int error = errno;
  return absl::NotFoundError(
      Concat("cannot write ", path, ": ", std::generic_category().message(error)));
}

bool IsStandardOutput(const std::string& path) {
  struct stat file = {};
  struct stat output = {};
  return stat(path.c_str(), &file) == 0 && fstat(STDOUT_FILENO, &output) == 0 &&
         file.st_dev == output.st_dev && file.st_ino == output.st_ino;
}

// Writes and closes.
absl::Status WriteAll(int file, const std::string& path, std::string_view text) {
  bool is_written = true;
  while (is_written && !text.empty()) {
    const ssize_t count = write(file, text.data(), text.size());
    if (count >= 0) text.remove_prefix(static_cast<size_t>(count));
    is_written = count >= 0 || errno == EINTR;
  }
  if (is_written) return close(file) == 0 ? absl::OkStatus() : Failed(path);
  const absl::Status status = Failed(path);
  close(file);
  return status;
}

}  // namespace

bool IsStream(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && (!fs::is_regular_file(status) || IsStandardOutput(path));
}

absl::Status WriteOutputFile(const std::string& path, std::string_view text) {
  if (IsStream(path)) {
    std::cout << std::flush;
    const int file = IsStandardOutput(path) ? dup(STDOUT_FILENO)
                                            : open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    return file < 0 ? Failed(path) : WriteAll(file, path, text);
  }
  const std::string target = option::LinkTarget(path);
  if (access(target.c_str(), W_OK) != 0 && errno != ENOENT) return Failed(path);
  constexpr int kMaxNames = 100;  // Killed processes may have left some of these files.
  std::string fresh;
  int file = -1;
  for (int i = 0; i < kMaxNames && file < 0; ++i) {
    fresh = Concat(target, ".", std::to_string(getpid()), "_", std::to_string(i), ".part");
    file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno != EEXIST) break;
  }
  if (file < 0) return Failed(path);
  absl::Status status = WriteAll(file, path, text);
  if (status.ok() && std::rename(fresh.c_str(), target.c_str()) != 0) status = Failed(path);
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

}  // namespace gemmd::bench
