// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/option/mismatch.h"

namespace gemmd {
namespace {

// Letters of a peer's name that are looked at: the time grows with their square.
constexpr size_t kMostLetters = 64;

size_t Distance(absl::string_view x, absl::string_view y) {
  std::vector<std::vector<size_t>> edits(x.size() + 1, std::vector<size_t>(y.size() + 1));
  for (size_t i = 0; i <= x.size(); ++i) {
    for (size_t j = 0; j <= y.size(); ++j) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      const size_t replaced = edits[i - 1][j - 1] + (x[i - 1] == y[j - 1] ? 0 : 1);
      edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, replaced});
      const bool is_swap =
          i > 1 && j > 1 && x[i - 1] == y[j - 2] && x[i - 2] == y[j - 1] && x[i - 1] != y[j - 1];
      if (is_swap) edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  }
  return edits.back().back();
}

// The command that was given, or the program itself.
const CLI::App& Given(const CLI::App& app) {
  const std::vector<const CLI::App*> commands =
      app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  return commands.empty() ? app : *commands.front();
}

// A command has the options of its program, too.
std::vector<std::string> OptionNames(const CLI::App& program, const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* app : {&command, &program}) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames())
        names.push_back(absl::StrCat("--", name));
      for (const std::string& name : option->get_snames()) names.push_back(absl::StrCat("-", name));
    }
    if (&command == &program) break;
  }
  return names;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

std::string PathOf(const CLI::App& program, const CLI::App& command) {
  if (&program == &command) return program.get_name();
  return absl::StrCat(program.get_name(), " ", command.get_name());
}

std::string DidYouMean(absl::string_view name, absl::Span<const std::string> names) {
  const absl::string_view nearest = NearestName(name, names);
  return nearest.empty() ? "" : absl::StrCat(": did you mean ", nearest, "?");
}

}  // namespace

absl::string_view NearestName(absl::string_view name, absl::Span<const std::string> names) {
  const absl::string_view beginning = name.substr(0, kMostLetters);
  size_t least = std::max<size_t>(2, beginning.size() / 3) + 1;
  absl::string_view nearest;
  for (const std::string& known : names) {
    const size_t distance = Distance(beginning, absl::string_view(known).substr(0, kMostLetters));
    // What has all of its letters replaced does not look like it.
    if (distance >= least || distance >= known.size()) continue;
    least = distance;
    nearest = known;
  }
  return nearest;
}

std::function<std::string(const std::string&)> OneOf(std::vector<std::string> names) {
  return [names = std::move(names)](const std::string& text) -> std::string {
    if (std::find(names.begin(), names.end(), text) != names.end()) return "";
    const absl::Span<const std::string> all = names;
    const std::string ahead = absl::StrJoin(all.first(all.size() - 1), ", ");
    return absl::StrCat("got ", text, ", want ", ahead, ahead.empty() ? "" : " or ", all.back(),
                        DidYouMean(text, names));
  };
}

std::string HelpAskedFor(const CLI::App& app) {
  for (const CLI::App* asked : {&Given(app), &app}) {
    const auto is_given = [](const CLI::Option* option) {
      return option != nullptr && option->count() > 0;
    };
    if (is_given(asked->get_help_all_ptr())) return app.help("", CLI::AppFormatMode::All);
    if (is_given(asked->get_help_ptr())) return app.help();
  }
  return "";
}

std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& given = Given(app);
  const std::string path = PathOf(app, given);
  const std::string help = absl::StrCat(" (", path, " --help lists them)");
  const std::vector<std::string> unknown = app.remaining(true);
  const auto option = std::find_if(unknown.begin(), unknown.end(), [](const std::string& text) {
    return text.size() > 1 && text.front() == '-';
  });
  if (option != unknown.end()) {
    const std::string name = option->substr(0, option->find('='));
    return absl::StrCat("option: got ", name, ", want an option of ", path,
                        DidYouMean(name, OptionNames(app, given)), help);
  }
  const std::vector<std::string> commands = CommandNames(app);
  if (&given == &app && app.get_require_subcommand_min() > 0) {
    if (unknown.empty()) return absl::StrCat("command: got none, want a command of ", path, help);
    return absl::StrCat("command: got ", unknown.front(), ", want a command of ", path,
                        DidYouMean(unknown.front(), commands), help);
  }
  if (!unknown.empty()) {
    return absl::StrCat("argument: got ", unknown.front(), ", which ", path, " does not take", " (",
                        path, " --help tells what it takes)");
  }
  return option::TextOf(error);
}

}  // namespace gemmd
