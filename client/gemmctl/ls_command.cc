// SPDX-License-Identifier: Apache-2.0
//
// gemmctl ls.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/tensor_session.h"
#include "client/gemmctl/tensor_table.h"
#include "client/terminal/option.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {
namespace {

constexpr char kLsHelp[] =
    "Examples:\n"
    "  gemmctl ls\n"
    "  gemmctl ls 'weights/*' --json | jq -r '.tensors[].handle'\n\n";

ExitCode RunLs(const GlobalFlags& global, const std::string& pattern, const Console& console) {
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  const auto tensors = client->ListTensors(pattern);
  if (!tensors.ok()) return FailCall(console, tensors.status());
  if (!global.json) {
    console.Print(TensorTable(*tensors));
    return ExitCode::kOk;
  }
  nlohmann::ordered_json json = MessageJson(*tensors);
  json["tensors"] = nlohmann::ordered_json::array();
  for (const v1::TensorInfo& tensor : tensors->tensors()) {
    json["tensors"].push_back(TensorJson(tensor));
  }
  console.Print(JsonLine(json));
  return ExitCode::kOk;
}

CommandRun AddLs(CLI::App& app) {
  auto pattern = std::make_unique<std::string>();
  SetFooter(app, absl::StrCat(kLsHelp, kSessionHelp));
  AddOption(app, "PATTERN", *pattern,
            "Only names that match, with * and ? (default: all, also those without a name)");
  return [pattern = std::move(pattern)](const GlobalFlags& global, const Console& console) {
    return RunLs(global, *pattern, console);
  };
}

}  // namespace

constexpr Command kLsCommand = {"ls", "List the tensors that the session keeps on the server",
                                AddLs};

}  // namespace gemmd
