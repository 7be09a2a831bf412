// SPDX-License-Identifier: Apache-2.0
//
// The command line of gemmctl: its commands, flags and help.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/gemmctl/command.h"
#include "client/terminal/console.h"
#include "client/terminal/option.h"

namespace gemmd {

// Defaults from the environment, for flags not given.
struct Environment {
  std::string address;              // Where the server is.
  std::string session = {};         // A token.
  std::string session_folder = {};  // Private folder for session tokens; empty: none.
  SecurityFlags security = {};
};

struct Command {
  const char* name;     // "multiply".
  const char* summary;  // One-line help.
  CommandRun (*add)(CLI::App& app);
};

// All commands, in the order of the help.
absl::Span<const Command> Commands();

// Runs gemmctl with the arguments after its name.
ExitCode RunCommandLine(const std::vector<std::string>& arguments, const Environment& environment,
                        const Console& console);

}  // namespace gemmd
