// SPDX-License-Identifier: Apache-2.0
//
// Runs gemmctl in this process: from arguments to text and exit code.
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

// `address`: the value of GEMMD_ADDRESS. `in`: standard input. `session_folder`: where tokens are
// stored.
Outcome RunGemmctl(const std::vector<std::string>& arguments, const std::string& address,
                   const std::string& in = "", const std::string& session_folder = "");

}  // namespace gemmd
