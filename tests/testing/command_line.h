// SPDX-License-Identifier: Apache-2.0
//
// The command lines of the checking and recording programs.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace gemmd {

// Reads the arguments. Returns an exit code if the program must end: 0 after --help, 2 after a
// message about wrong arguments.
inline std::optional<int> ReadArguments(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

}  // namespace gemmd
