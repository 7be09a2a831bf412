// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/completion.h"

#include <CLI/CLI.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/terminal/type_names.h"

namespace gemmd {
namespace {

// One option as a shell sees it.
struct OptionWords {
  std::vector<std::string> names;  // "--output", "-o".
  bool takes_value = false;
  std::vector<std::string> choices;  // What the value may be; empty: anything, such as a file.
  std::string help;
};

// A command with its own options, or the program with those of all commands.
struct CommandWords {
  std::string name;
  std::string help;
  std::vector<OptionWords> options;
  std::vector<std::string> choices;  // What its first argument may be, likewise.
};

const CLI::App& ProgramOf(const CLI::App& app) {
  return app.get_parent() == nullptr ? app : *app.get_parent();
}

// The values that an option or an argument may have; empty where it may have any.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "TYPE") return TypeNames();
  if (!absl::StrContains(type, '|')) return {};
  return absl::StrSplit(type, '|');
}

// Those of the first argument.
std::vector<std::string> ArgumentChoicesOf(const CLI::App& command) {
  const std::vector<const CLI::Option*> arguments =
      command.get_options([](const CLI::Option* option) { return option->get_positional(); });
  return arguments.empty() ? std::vector<std::string>() : ChoicesOf(*arguments.front());
}

std::vector<OptionWords> OptionsOf(const CLI::App& app) {
  std::vector<OptionWords> all;
  for (const CLI::Option* option : app.get_options()) {
    OptionWords words;
    for (const std::string& name : option->get_lnames())
      words.names.push_back(absl::StrCat("--", name));
    for (const std::string& name : option->get_snames())
      words.names.push_back(absl::StrCat("-", name));
    if (words.names.empty()) continue;  // A positional.
    words.takes_value = option->get_items_expected_max() > 0;
    words.choices = ChoicesOf(*option);
    words.help = option->get_description();
    all.push_back(std::move(words));
  }
  return all;
}

std::vector<CommandWords> CommandsOf(const CLI::App& program) {
  std::vector<CommandWords> all;
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    all.push_back({command->get_name(), command->get_description(), OptionsOf(*command),
                   ArgumentChoicesOf(*command)});
  }
  return all;
}

std::string NamesOf(const std::vector<OptionWords>& options) {
  std::vector<std::string> names;
  for (const OptionWords& option : options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return absl::StrJoin(names, " ");
}

// What follows an option that takes a value: its choices, or files.
std::string BashValues(const std::string& command, const std::vector<OptionWords>& options) {
  std::string cases;
  for (const OptionWords& option : options) {
    if (!option.takes_value) continue;
    const auto pattern = [&command](std::string* text, const std::string& name) {
      absl::StrAppend(text, command, ":", name);
    };
    absl::StrAppend(&cases, "    ", absl::StrJoin(option.names, "|", pattern), ") ");
    if (option.choices.empty()) {
      absl::StrAppend(&cases, "return ;;\n");
    } else {
      absl::StrAppend(&cases, "COMPREPLY=($(compgen -W '", absl::StrJoin(option.choices, " "),
                      "' -- \"$cur\")); return ;;\n");
    }
  }
  return cases;
}

// Text within single quotes of a zsh option's "[text]".
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}, {"\n", " "}});
}

std::string ZshOptions(const std::vector<OptionWords>& options) {
  std::string text;
  for (const OptionWords& option : options) {
    std::string value;
    if (option.takes_value) {
      value = option.choices.empty()
                  ? ":value:_files"
                  : absl::StrCat(":value:(", absl::StrJoin(option.choices, " "), ")");
    }
    for (const std::string& name : option.names) {
      const bool is_long = absl::StartsWith(name, "--");
      absl::StrAppend(&text, " \\\n        '", name, option.takes_value && is_long ? "=" : "", "[",
                      ZshText(option.help), "]", value, "'");
    }
  }
  return text;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const CLI::App& program = ProgramOf(app);
  const std::string name = program.get_name();
  const std::vector<OptionWords> shared = OptionsOf(program);
  const std::vector<CommandWords> commands = CommandsOf(program);
  std::vector<std::string> names;
  std::string values = BashValues("*", shared);
  std::string words;
  for (const CommandWords& command : commands) {
    names.push_back(command.name);
    // Ahead of the program's, so that the command's own count.
    values = absl::StrCat(BashValues(command.name, command.options), values);
    absl::StrAppend(&words, "    ", command.name, ") words='", NamesOf(command.options),
                    "' values='", absl::StrJoin(command.choices, " "), "' ;;\n");
  }
  return absl::StrCat("# bash completion for ", name, "\n_", name, "() {\n",
                      R"(  # The parts of --option=value are words of their own.
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command= word words= values=
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do
    case $word in
      )",
                      absl::StrJoin(names, "|"), R"()
        command=$word
        break
        ;;
    esac
  done
  COMPREPLY=()
  case $command:$prev in
)",
                      values, R"(  esac
  case $command in
    '') words=')",
                      absl::StrJoin(names, " "), R"(' ;;
)",
                      words, R"(  esac
  # Else files, as -o default completes them.
  if [[ -z $command || $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$words )",
                      NamesOf(shared), R"(" -- "$cur"))
  elif [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
  fi
}
complete -o default -F _)",
                      name, " ", name, "\n");
}

std::string ZshCompletion(const CLI::App& app) {
  const CLI::App& program = ProgramOf(app);
  const std::string name = program.get_name();
  const std::vector<OptionWords> shared = OptionsOf(program);
  std::string list;
  std::string cases;
  for (const CommandWords& command : CommandsOf(program)) {
    absl::StrAppend(&list, "    '", command.name, ":", ZshText(command.help), "'\n");
    const std::string argument =
        command.choices.empty()
            ? "'*:file:_files'"
            : absl::StrCat("'1:value:(", absl::StrJoin(command.choices, " "), ")'");
    absl::StrAppend(&cases, "        ", command.name, ")\n          _arguments",
                    ZshOptions(command.options), ZshOptions(shared), " \\\n        ", argument,
                    "\n          ;;\n");
  }
  return absl::StrCat("#compdef ", name, "\n_", name, R"(() {
  local state
  local -a commands
  commands=(
)",
                      list, R"(  )
  _arguments -C)",
                      ZshOptions(shared), R"( \
        '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
)",
                      cases, "      esac\n      ;;\n  esac\n}\n_", name, " \"$@\"\n");
}

}  // namespace gemmd
