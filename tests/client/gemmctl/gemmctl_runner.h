// SPDX-License-Identifier: Apache-2.0
//
// gemmctl in this process: arguments in, text and exit code out.
#pragma once

#include <string>
#include <vector>

#include "client/terminal/console.h"

namespace gemmd {

struct Outcome {
  ExitCode code;
  std::string out;
  std::string err;
};

// `address`: what GEMMD_ADDRESS would say. `in`: standard input. `session_folder`: where tokens are
// kept.
Outcome RunGemmctl(const std::vector<std::string>& arguments, const std::string& address,
                   const std::string& in = "", const std::string& session_folder = "");

}  // namespace gemmd
