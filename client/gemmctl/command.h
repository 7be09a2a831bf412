// SPDX-License-Identifier: Apache-2.0
//
// What the commands of gemmctl share: the flags of all, the client that these ask for, and JSON.
//
// AddMultiply and its like add flags and help to the command's part of the command line, and return
// what runs the command after those flags were parsed. command_line.cc has the table of them all.
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
  std::string session;         // The token of a session; empty: the one that is kept.
  std::string session_folder;  // Where those are kept; empty: nowhere.
  SecurityFlags security = {};
};

// Prints a command's result or its error and says how it went. It owns the flags of the command.
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

// The message in protobuf's JSON mapping with the field names of the .proto file, but for values of
// enums, which read as in the flags ("f32", "row", "sampled"). 64-bit integers are numbers, not
// strings, and fields with default values are there too. The bytes of matrices are left out.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

// A number as protobuf's mapping has it: JSON itself has no NaN and no infinities.
nlohmann::ordered_json NumberJson(double value);

// One line of text per value, ended by a line feed.
std::string JsonLine(const nlohmann::ordered_json& json);

// Reads a time such as "90", "1.5" (seconds), "500ms" or "2m".
// Errors: InvalidArgument, naming the flag, unless the text is a positive, finite time.
absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text,
                                            const std::string& flag = "--timeout");

// `default_timeout` counts where no flag gives one. Errors: InvalidArgument for a bad address or
// timeout.
absl::StatusOr<Client> Connect(const GlobalFlags& flags,
                               absl::Duration default_timeout = absl::Seconds(60));

// Writes a text to a file, or prints it where the path is "-".
ExitCode WriteOrPrint(const std::string& path, const std::string& text, const Console& console);

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

// Runs a command with what its part of the command line sets: its flags, or its one argument.
template <typename Flags, typename Run>
CommandRun RunWith(std::unique_ptr<Flags> flags, Run run) {
  return [flags = std::move(flags), run](const GlobalFlags& global, const Console& console) {
    return run(global, *flags, console);
  };
}

// Adds the one argument of a command, which says what it is done to.
template <typename Run>
CommandRun AddSubject(CLI::App& app, const char* help, const std::string& option,
                      const std::string& type, const std::string& description, Run run) {
  auto subject = std::make_unique<std::string>();
  SetFooter(app, help);
  AddOption(app, option, *subject, description).TypeName(type).Require();
  return RunWith(std::move(subject), run);
}

}  // namespace gemmd
