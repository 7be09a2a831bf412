// SPDX-License-Identifier: Apache-2.0
//
// The command line of gemmctl: its commands, flags and help.
#pragma once

#include <string>
#include <vector>

#include "client/terminal/console.h"
#include "client/terminal/security_flags.h"

namespace gemmd {

// What the environment says, where no flag does.
struct Environment {
  std::string address;              // Where the server is.
  std::string session = {};         // A token.
  std::string session_folder = {};  // For their tokens, this user's alone; empty: there is none.
  SecurityFlags security = {};
};

// Runs gemmctl with the arguments after its name.
ExitCode RunCommandLine(const std::vector<std::string>& arguments, const Environment& environment,
                        const Console& console);

}  // namespace gemmd
