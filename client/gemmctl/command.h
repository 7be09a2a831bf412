// SPDX-License-Identifier: Apache-2.0
//
// Shared by the commands of gemmctl: global flags, the client that these flags describe, and JSON.
//
// AddMultiply and its siblings add flags and help to a command, and return a function that runs the
// command after parsing. command_line.cc has the table of all commands.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/terminal/console.h"
#include "client/terminal/option.h"
#include "gemmd/client.h"
#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace CLI {
class App;
}

namespace gemmd {

// Flags of every command.
struct GlobalFlags {
  std::string address;
  std::string timeout;  // "60", "500ms"; empty: the command's default.
  bool json = false;
  std::string session;         // A session's token; empty: the stored token.
  std::string session_folder;  // Folder of stored tokens; empty: none are stored.
  SecurityFlags security = {};
};

// Runs a command, prints its result or error, and returns the exit code. Owns the command's flags.
using CommandRun = absl::AnyInvocable<ExitCode(const GlobalFlags& global, const Console& console)>;

CommandRun AddMultiply(CLI::App& app);
CommandRun AddExplain(CLI::App& app);
CommandRun AddRandom(CLI::App& app);
CommandRun AddConvert(CLI::App& app);
CommandRun AddDiff(CLI::App& app);
CommandRun AddPut(CLI::App& app);
CommandRun AddGet(CLI::App& app);
CommandRun AddLs(CLI::App& app);
CommandRun AddRm(CLI::App& app);
CommandRun AddKeep(CLI::App& app);
CommandRun AddCompress(CLI::App& app);
CommandRun AddKernels(CLI::App& app);
CommandRun AddInstructions(CLI::App& app);
CommandRun AddFragment(CLI::App& app);
CommandRun AddDevices(CLI::App& app);
CommandRun AddInfo(CLI::App& app);
CommandRun AddTop(CLI::App& app);
CommandRun AddHealth(CLI::App& app);
CommandRun AddDoctor(CLI::App& app);
CommandRun AddRestart(CLI::App& app);
CommandRun AddSessions(CLI::App& app);
CommandRun AddDropSession(CLI::App& app);
CommandRun AddIncidents(CLI::App& app);
CommandRun AddReplay(CLI::App& app);

// The message in protobuf's JSON mapping with the field names of the .proto file, except that
// enum values read as in flags ("f32", "row", "sampled"), 64-bit integers are numbers, and fields
// with default values are included. Leaves out the bytes of matrices.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

// A number as in protobuf's JSON mapping: JSON itself lacks NaN and infinities.
nlohmann::ordered_json NumberJson(double value);

// One line of text per value, ended by a line feed.
std::string JsonLine(const nlohmann::ordered_json& json);

// Reads a time such as "90", "1.5" (seconds), "500ms" or "2m".
// Errors: InvalidArgument, naming the flag, unless the text is a positive, finite time.
absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text,
                                            const std::string& flag = "--timeout");

// `default_timeout` applies if no flag sets a timeout. Errors: InvalidArgument for a bad address or
// timeout.
absl::StatusOr<Client> Connect(const GlobalFlags& flags,
                               absl::Duration default_timeout = absl::Seconds(60));

// Writes a text to a file, or prints it if the path is "-".
ExitCode WriteOrPrint(const std::string& path, const std::string& text, const Console& console);

// Asks the server, and prints its answer as JSON or as formatted by `text`.
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

// Runs a command with its parsed flags or its single argument.
template <typename Flags, typename Run>
CommandRun RunWith(std::unique_ptr<Flags> flags, Run run) {
  return [flags = std::move(flags), run](const GlobalFlags& global, const Console& console) {
    return run(global, *flags, console);
  };
}

// Adds the single argument of a command.
template <typename Run>
CommandRun AddSubject(CLI::App& app, const char* help, const std::string& option,
                      const std::string& type, const std::string& description, Run run) {
  auto subject = std::make_unique<std::string>();
  SetFooter(app, help);
  AddOption(app, option, *subject, description).TypeName(type).Require();
  return RunWith(std::move(subject), run);
}

}  // namespace gemmd
