// SPDX-License-Identifier: Apache-2.0
#include "server/config_place.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "absl/strings/ascii.h"

namespace gemmd {
namespace {

// The name of the option that a message of CLI11's is about: "grace" for "--grace: ..." and for
// "INI was not able to parse grace"; empty: none.
std::string OptionOf(std::string_view message) {
  constexpr std::string_view kUnknown = "INI was not able to parse ";
  if (message.starts_with(kUnknown)) return std::string(message.substr(kUnknown.size()));
  if (!message.starts_with("--")) return "";
  message.remove_prefix(2);
  return std::string(message.substr(0, message.find_first_of(": ")));
}

// The number of the line, from 1 on, that gives the option; 0: none does. Of several lines the one
// whose value the message says it got, or else the first.
int LineOf(std::istream& file, const std::string& option, std::string_view message) {
  std::string line;
  int first = 0;
  for (int number = 1; std::getline(file, line); ++number) {
    const size_t equals = line.find('=');
    std::string name = line.substr(0, equals);
    absl::StripAsciiWhitespace(&name);
    if (name != option) continue;
    if (first == 0) first = number;
    std::string value = equals == std::string::npos ? "" : line.substr(equals + 1);
    absl::StripAsciiWhitespace(&value);
    if (!value.empty() && message.find("got " + value) != std::string_view::npos) return number;
  }
  return first;
}

}  // namespace

std::string PlaceInFile(const CLI::App& app, const CLI::ParseError& mistake, int argc,
                        const char* const* argv) {
  const std::string name = OptionOf(mistake.what());
  const CLI::Option* const config = app.get_config_ptr();
  if (name.empty() || config->count() == 0) return "";
  const std::string option = "--" + name;
  const bool is_on_command_line = std::any_of(argv, argv + argc, [&](std::string_view argument) {
    return argument == option || argument.starts_with(option + "=");
  });
  if (is_on_command_line) return "";
  const std::string path = config->as<std::string>();
  std::ifstream file(path);
  const int line = LineOf(file, name, mistake.what());
  return line == 0 ? "" : path + ":" + std::to_string(line) + ": ";
}

std::string TextOf(const CLI::App& app, const CLI::ConfigError& mistake, int argc,
                   const char* const* argv) {
  const std::string name = OptionOf(mistake.what());
  return PlaceInFile(app, mistake, argc, argv) + "got " + (name.empty() ? mistake.what() : name) +
         ", want the name of an option without --, = and the option's value\n"
         "Run with --help for more information.\n";
}

}  // namespace gemmd
