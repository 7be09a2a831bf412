// SPDX-License-Identifier: Apache-2.0
#include "server/config_place.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "kernels/nearest_names.h"

namespace gemmd {
namespace {

// What stands for a section in CLI11's names of what it read.
constexpr char kSection[] = ".++";

// The name of the option that a message is about: "grace" for "--grace: ..." and "grace: ..." and
// for CLI11's own "INI was not able to parse grace" and "Could not convert: --grace = 1"; empty:
// none.
std::string OptionOf(absl::string_view message) {
  if (absl::ConsumePrefix(&message, "INI was not able to parse ")) {
    return std::string(absl::StripSuffix(message, kSection));
  }
  absl::ConsumePrefix(&message, "Could not convert: ");
  absl::ConsumePrefix(&message, "--");
  return std::string(message.substr(0, message.find_first_of(": ")));
}

constexpr char kMore[] = "\nRun with --help for more information.\n";

// ": did you mean --grace?", with what precedes names where they are written; empty where no option
// is named like this.
std::string DidYouMean(const CLI::App& app, std::string_view name, const std::string& prefix) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames()) names.push_back(known);
  }
  const std::optional<size_t> similar = NameIndex(names).Similar(name);
  if (!similar) return "";
  return ": did you mean " + prefix + std::string(names[*similar]) + "?";
}

}  // namespace

ConfigPlaces::ConfigPlaces(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::Option* const config = app.get_config_ptr();
  if (config->count() == 0) return;
  path_ = config->as<std::string>();
  std::ifstream file(path_);
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const size_t equals = text.find('=');
    std::string name = text.substr(0, equals);
    absl::StripAsciiWhitespace(&name);
    if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
    const std::string option(absl::StripPrefix(name, "--"));
    const std::string flag = "--" + option;
    const bool is_on_command_line = std::any_of(argv, argv + argc, [&](std::string_view argument) {
      return argument == flag || argument.starts_with(flag + "=");
    });
    if (option.empty() || is_on_command_line) continue;
    std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
    absl::StripAsciiWhitespace(&value);
    lines_.push_back({number, option, value});
  }
}

std::string ConfigPlaces::Of(std::string_view message) const {
  const std::string option = OptionOf({message.data(), message.size()});
  const Line* found = nullptr;
  for (const Line& line : lines_) {
    if (line.option != option) continue;
    const bool is_told =
        !line.value.empty() && message.find("got " + line.value) != std::string_view::npos;
    if (found == nullptr || is_told) found = &line;
    if (is_told) break;
  }
  return found == nullptr ? "" : path_ + ":" + std::to_string(found->number) + ": ";
}

std::string TextOf(const ConfigPlaces& places, const std::string& text) {
  const std::string place = places.Of(text);
  const std::string name = OptionOf(text);
  const std::string flag = "--" + name + ": ";
  absl::string_view rest = text;
  if (!name.empty() && absl::ConsumePrefix(&rest, flag) &&
      (absl::ConsumePrefix(&rest, flag) || absl::ConsumePrefix(&rest, name + ": "))) {
    return place + flag + std::string(rest);
  }
  return place + text;
}

std::string TextOf(const CLI::App& app, const CLI::ConfigError& mistake,
                   const ConfigPlaces& places) {
  const std::string name = OptionOf(mistake.what());
  return places.Of(mistake.what()) + "got " + (name.empty() ? mistake.what() : name) +
         ", want the name of an option without --, = and the option's value" +
         DidYouMean(app, name, "") + kMore;
}

std::string TextOf(const CLI::App& app, const CLI::ExtrasError& mistake) {
  for (const std::string& left : app.remaining()) {
    if (!left.starts_with("--")) continue;
    const std::string name = left.substr(0, left.find('='));
    return "option: got " + name + ", want an option of gemmd" +
           DidYouMean(app, std::string_view(name).substr(2), "--") + kMore;
  }
  return mistake.what() + std::string(kMore);
}

}  // namespace gemmd
