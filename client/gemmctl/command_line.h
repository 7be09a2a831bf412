// SPDX-License-Identifier: Apache-2.0
//
// The command line of gemmctl: its commands, flags and help.
#pragma once

#include <string>
#include <vector>

#include "client/terminal/console.h"

namespace gemmd {

// Runs gemmctl with the arguments after its name. `address`: where the server is if no flag says
// so.
ExitCode RunCommandLine(const std::vector<std::string>& arguments, const std::string& address,
                        const Console& console);

}  // namespace gemmd
