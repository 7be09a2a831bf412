// SPDX-License-Identifier: Apache-2.0
//
// Where in a configuration file a mistake is, which CLI11 does not tell.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gemmd {

// "FILE:LINE: " where the mistake is in the file that --config names; empty where it is on the
// command line, from which an option is taken before it is from the file.
std::string PlaceInFile(const CLI::App& app, const CLI::ParseError& mistake, int argc,
                        const char* const* argv);

// What is wrong with a file that names an option that there is not, and where.
std::string TextOf(const CLI::App& app, const CLI::ConfigError& mistake, int argc,
                   const char* const* argv);

}  // namespace gemmd
