// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/report_files.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/load/report/html_report.h"
#include "client/terminal/text_file.h"

namespace gemmd {
namespace {

namespace fs = std::filesystem;

struct NamedPath {
  const char* flag;
  const std::string& path;
};

// By whatever path. Devices such as /dev/null may be named twice.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::is_character_file(a, error)) return false;
  if (fs::equivalent(a, b, error)) return true;
  return fs::weakly_canonical(fs::absolute(a, error), error) ==
         fs::weakly_canonical(fs::absolute(b, error), error);
}

}  // namespace

absl::Status CheckReportFiles(const LoadFlags& flags, const Mix& mix) {
  std::vector<NamedPath> read = {{"--mix", flags.mix_path}, {"--replay", flags.replay_path}};
  for (const LoadProduct& product : mix) {
    read.push_back({"operand A", product.a_path});
    read.push_back({"operand B", product.b_path});
  }
  const std::vector<NamedPath> written = {
      {"--json", flags.json_path}, {"--csv", flags.csv_path}, {"--html", flags.html_path}};
  std::vector<NamedPath> others = read;
  for (const NamedPath& one : written) {
    if (one.path.empty()) continue;
    for (const NamedPath& other : others) {
      if (other.path.empty() || !IsSameFile(one.path, other.path)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          one.flag, ": got \"", one.path, "\", want another file than that of ", other.flag));
    }
    if (absl::Status status = CheckWritable(one.path); !status.ok()) return status;
    others.push_back(one);
  }
  return absl::OkStatus();
}

absl::Status WriteReportFiles(const LoadFlags& flags, const LoadReport& report) {
  absl::Status status;
  if (!flags.json_path.empty()) {
    // A mix or a server may hold text that is not UTF-8.
    const std::string json =
        ReportJson(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
    status.Update(WriteTextFile(flags.json_path, json + "\n"));
  }
  if (!flags.csv_path.empty()) status.Update(WriteTextFile(flags.csv_path, ReportCsv(report)));
  if (!flags.html_path.empty()) status.Update(WriteTextFile(flags.html_path, ReportHtml(report)));
  return status;
}

}  // namespace gemmd
