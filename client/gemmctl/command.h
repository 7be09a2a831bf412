// SPDX-License-Identifier: Apache-2.0
//
// What a command of gemmctl consists of. Each is one file, <name>_command.cc, which owns its flags,
// its help and what it does; commands.h lists them all.
#pragma once

#include <string>

#include "absl/functional/any_invocable.h"
#include "client/terminal/console.h"
#include "client/terminal/security_flags.h"

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

struct Command {
  const char* name;     // "multiply".
  const char* summary;  // The command in one line of help.

  // Adds flags and help to the command's part of the command line, and returns what runs the
  // command after those flags were parsed.
  CommandRun (*add)(CLI::App& app);
};

}  // namespace gemmd
