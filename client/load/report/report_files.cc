// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/report_files.h"

#include <string>
#include <vector>

#include "client/load/report/html_report.h"
#include "client/output_file.h"
#include "client/terminal/text_file.h"

namespace gemmd {
absl::Status CheckReportFiles(const LoadFlags& flags, const Mix& mix) {
  std::vector<NamedFile> inputs = FilesOf(flags.security);
  inputs.push_back({"--mix", flags.mix_path});
  inputs.push_back({"--replay", flags.replay_path});
  for (const LoadProduct& product : mix) {
    inputs.push_back({"operand A", product.a_path});
    inputs.push_back({"operand B", product.b_path});
  }
  const std::vector<NamedFile> outputs = {
      {"--json", flags.json_path}, {"--csv", flags.csv_path}, {"--html", flags.html_path}};
  absl::Status status = CheckOutputs(outputs, inputs);
  for (const NamedFile& output : outputs) {
    if (status.ok() && !output.path.empty()) status = CheckWritable(output.path);
  }
  return status;
}

absl::Status WriteReportFiles(const LoadFlags& flags, const LoadReport& report,
                              const StopRequests& stop) {
  absl::Status status;
  if (!flags.json_path.empty()) {
    // A mix or a server may hold text that is not UTF-8.
    const std::string json =
        ReportJson(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
    status.Update(WriteTextFile(flags.json_path, json + "\n", &stop));
  }
  if (!flags.csv_path.empty()) {
    status.Update(WriteTextFile(flags.csv_path, ReportCsv(report), &stop));
  }
  if (!flags.html_path.empty()) {
    status.Update(WriteTextFile(flags.html_path, ReportHtml(report), &stop));
  }
  return status;
}

}  // namespace gemmd
