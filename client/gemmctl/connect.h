// SPDX-License-Identifier: Apache-2.0
//
// The client that the global flags ask for.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/option.h"
#include "gemmd/client.h"

namespace gemmd {

// Reads a time such as "90", "1.5" (seconds), "500ms" or "2m".
// Errors: InvalidArgument, naming the flag, unless the text is a positive, finite time.
absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text,
                                            const std::string& flag = "--timeout");

// `default_timeout` counts where no flag gives one. Errors: InvalidArgument for a bad address or
// timeout.
absl::StatusOr<Client> Connect(const GlobalFlags& flags,
                               absl::Duration default_timeout = absl::Seconds(60));

// Asks the server, and prints its answer as JSON for programs or as `text` shows it.
template <typename Ask, typename Text,
          typename Json = nlohmann::ordered_json (*)(const google::protobuf::Message&)>
ExitCode PrintAnswer(const GlobalFlags& global, const Console& console, Ask ask, Text text,
                     Json json = MessageJson) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto answer = ask(*client);
  if (!answer.ok()) return FailCall(console, answer.status());
  console.Print(global.json ? JsonLine(json(*answer)) : text(*answer));
  return ExitCode::kOk;
}

// Adds the one argument of a command, which says what it is done to.
template <typename Run>
CommandRun AddSubject(CLI::App& app, const char* help, const std::string& option,
                      const std::string& type, const std::string& description, Run run) {
  auto subject = std::make_unique<std::string>();
  SetFooter(app, help);
  AddOption(app, option, *subject, description).TypeName(type).Require();
  return [subject = std::move(subject), run](const GlobalFlags& global, const Console& console) {
    return run(global, *subject, console);
  };
}

}  // namespace gemmd
