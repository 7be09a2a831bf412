// SPDX-License-Identifier: Apache-2.0
//
// The command line of gemmload: its flags, help, exit codes, and where its report goes.
#pragma once

#include <string>
#include <vector>

#include "client/load/load_clock.h"
#include "client/load/report/report.h"
#include "client/terminal/console.h"
#include "client/terminal/security_flags.h"

namespace gemmd {

// Runs gemmload with the arguments after its name. `address`: where the server is if no flag says
// so. `is_terminal`: whether the console's `err` can be rewritten. `security`: what holds where no
// flag says otherwise.
ExitCode RunGemmload(const std::vector<std::string>& arguments, const std::string& address,
                     const Console& console, bool is_terminal, const StopRequests& stop,
                     const SecurityFlags& security = {});

// The exit code of a session that has a report.
ExitCode ExitCodeOf(const LoadReport& report);

}  // namespace gemmd
