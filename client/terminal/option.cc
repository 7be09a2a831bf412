// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/terminal/console.h"
#include "gemmd/element_type.h"
#include "kernels/matrix/nearest_names.h"
#include "kernels/matrix/text.h"
#include "kernels/option/option.h"

namespace gemmd {

std::vector<std::string> TypeNames() {
  std::vector<std::string> names;
  const google::protobuf::EnumDescriptor& types = *v1::ElementType_descriptor();
  for (int i = 0; i < types.value_count(); ++i) {
    const auto type = static_cast<v1::ElementType>(types.value(i)->number());
    if (type != v1::ELEMENT_TYPE_UNSPECIFIED) names.emplace_back(ElementTypeName(type));
  }
  return names;
}

std::string TypeText(v1::ElementType type) { return std::string(ElementTypeName(type)); }

namespace {

// The given command, or the program itself.
const CLI::App& Given(const CLI::App& app) {
  const std::vector<const CLI::App*> commands =
      app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  return commands.empty() ? app : *commands.front();
}

// A command also has the options of its program.
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

std::string DidYouMean(const std::string& name, const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::optional<std::string> similar = NameIndex(views).Similar(name);
  return similar ? absl::StrCat(": did you mean ", *similar, "?") : "";
}

}  // namespace

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

namespace {

// "got 10y, want a number from 0 on".
std::string GotWant(const std::string& got, const std::string& want) {
  return absl::StrCat("got ", got, ", want ", want);
}

std::optional<std::vector<int64_t>> ShapeOf(const std::string& text, const ShapeRule& rule) {
  std::vector<int64_t> shape;
  for (const absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(",x"))) {
    const auto extent = ParseDecimal<int64_t>({part.data(), part.size()});
    if (!extent || *extent < rule.min || *extent > rule.max) return std::nullopt;
    shape.push_back(*extent);
  }
  const bool is_right = rule.min_extents <= shape.size() && shape.size() <= rule.max_extents;
  return is_right ? std::make_optional(std::move(shape)) : std::nullopt;
}

std::string TextOf(const ShapeRule& rule) {
  const std::string count = rule.min_extents == rule.max_extents
                                ? absl::StrCat(rule.min_extents)
                                : absl::StrCat(rule.min_extents, " to ", rule.max_extents);
  const std::string max = rule.max == ShapeRule().max ? "on" : absl::StrCat("to ", rule.max);
  return absl::StrCat(count, " whole numbers from ", rule.min, " ", max,
                      " with commas or the letter x between them");
}

template <typename Number>
CommandOption AddNumber(CLI::App& app, const std::string& name, Number& value,
                        const std::string& help, Number min, Number max) {
  return CommandOption(
      app.add_option(name, value, help)->transform(option::NumberFrom(min, max).description("")));
}

}  // namespace

std::string TypeHelp() {
  std::vector<std::string> names = TypeNames();
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat("TYPE is ", absl::StrJoin(names, ", "), " or ", last, ".");
}

CommandOption& CommandOption::TypeName(const std::string& name) {
  option_->type_name(name);
  return *this;
}

CommandOption& CommandOption::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

CommandOption& CommandOption::Require() {
  option_->required();
  return *this;
}

CommandOption& CommandOption::Need(const CommandOption& other) {
  option_->needs(other.option_);
  return *this;
}

CommandOption& CommandOption::Exclude(const CommandOption& other) {
  option_->excludes(other.option_);
  return *this;
}

CommandOption& CommandOption::Check(const std::function<std::string(const std::string&)>& refuse) {
  option_->check(refuse);
  return *this;
}

CommandOption AddOption(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help) {
  return CommandOption(app.add_option(name, value, help));
}

CommandOption AddOption(CLI::App& app, const std::string& name, int& value, const std::string& help,
                        int min, int max) {
  return AddNumber(app, name, value, help, min, max);
}

CommandOption AddOption(CLI::App& app, const std::string& name, int64_t& value,
                        const std::string& help, int64_t min, int64_t max) {
  return AddNumber(app, name, value, help, min, max);
}

CommandOption AddOption(CLI::App& app, const std::string& name, uint64_t& value,
                        const std::string& help) {
  return AddNumber(app, name, value, help, uint64_t{0}, std::numeric_limits<uint64_t>::max());
}

CommandOption AddOption(CLI::App& app, const std::string& name, double& value,
                        const std::string& help, double min, double max) {
  return AddNumber(app, name, value, help, min, max);
}

CommandOption AddFlag(CLI::App& app, const std::string& name, bool& value,
                      const std::string& help) {
  return CommandOption(app.add_flag(name, value, help));
}

CommandOption AddShape(CLI::App& app, const std::string& name, std::vector<int64_t>& value,
                       const std::string& help, const ShapeRule& rule) {
  const auto refuse = [rule](const std::string& text) {
    return ShapeOf(text, rule) ? "" : GotWant(text, TextOf(rule));
  };
  const auto set = [&value, rule](const std::string& text) {
    value = ShapeOf(text, rule).value_or(std::vector<int64_t>());
  };
  return CommandOption(app.add_option_function<std::string>(name, set, help)).Check(refuse);
}

CommandOption AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                            const std::string& help) {
  // Sixteen names would drown the help of every such option; the commands' footers have
  // TypeHelp().
  return CommandOption(
      app.add_option(name, value, help)->check(OneOf(TypeNames()))->type_name("TYPE"));
}

CommandOption AddChoice(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help, const std::vector<std::string>& choices) {
  return CommandOption(app.add_option(name, value, help)
                           ->check(OneOf(choices))
                           ->type_name(absl::StrJoin(choices, "|")));
}

void SetGroup(CLI::App& app, const std::string& heading) { app.option_defaults()->group(heading); }

void SetFooter(CLI::App& app, const std::string& text) { app.footer(text); }

v1::ElementType TypeOf(const std::string& name, v1::ElementType otherwise) {
  return ParseElementType(name).value_or(otherwise);
}

v1::Order OrderOf(const std::string& name) {
  return name == "column" ? v1::ORDER_COLUMN_MAJOR : v1::ORDER_ROW_MAJOR;
}

namespace {

void AddFile(CLI::App& app, const std::string& name, std::string& value, const std::string& help) {
  AddOption(app, name, value, help).TypeName("FILE");
}

}  // namespace

SecurityFlags SecurityFlagsOfEnvironment() {
  return {.tls = {.ca_file = Variable("GEMMD_TLS_CA"),
                  .certificate_file = Variable("GEMMD_TLS_CERT"),
                  .key_file = Variable("GEMMD_TLS_KEY"),
                  .server_name = Variable("GEMMD_TLS_SERVER_NAME")},
          .token_file = Variable("GEMMD_TOKEN_FILE")};
}

void AddSecurityFlags(CLI::App& app, SecurityFlags& flags) {
  const std::string group = app.option_defaults()->get_group();
  SetGroup(app, "Encryption and identity");
  AddFile(app, "--tls-ca", flags.tls.ca_file,
          "PEM file of authorities trusted to sign the server's certificate; also $GEMMD_TLS_CA "
          "(default with a tls: address: the system's)");
  AddFile(app, "--tls-cert", flags.tls.certificate_file,
          "PEM file of the client's certificate, for an mtls: address; also $GEMMD_TLS_CERT");
  AddFile(app, "--tls-key", flags.tls.key_file,
          "PEM file of its private key, without a passphrase; also $GEMMD_TLS_KEY");
  AddOption(app, "--tls-server-name", flags.tls.server_name,
            "Name that the server's certificate must contain; also $GEMMD_TLS_SERVER_NAME "
            "(default: the host of the address)")
      .TypeName("NAME");
  AddFlag(app, "--proxy", flags.use_proxy,
          "Connect through the proxy named by $grpc_proxy, $https_proxy or $http_proxy; a token "
          "then needs TLS (default: no proxy)");
  AddFile(app, "--token-file", flags.token_file,
          "File with the caller's token, sent only over TLS, loopback and unix sockets; also "
          "$GEMMD_TOKEN_FILE");
  SetGroup(app, group);
}

std::vector<NamedFile> FilesOf(const SecurityFlags& flags) {
  return {{"--tls-ca", flags.tls.ca_file},
          {"--tls-cert", flags.tls.certificate_file},
          {"--tls-key", flags.tls.key_file},
          {"--token-file", flags.token_file}};
}

absl::Status ApplySecurityFlags(const SecurityFlags& flags, ClientOptions& options) {
  options.tls = flags.tls;
  options.use_proxy = flags.use_proxy;
  if (flags.token_file.empty()) return absl::OkStatus();
  std::ifstream file(flags.token_file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  options.token = std::string(absl::StripAsciiWhitespace(text));
  if (!options.token.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--token-file: got \"", flags.token_file, "\", want a file with a token"));
}

namespace {

// One option as a shell sees it.
struct OptionWords {
  std::vector<std::string> names;  // "--output", "-o".
  bool takes_value = false;
  std::vector<std::string> choices;  // Allowed values; empty: any, such as a file.
  std::string help;
};

// A command with its own options, or the program with the global options.
struct CommandWords {
  std::string name;
  std::string help;
  std::vector<OptionWords> options;
  std::vector<std::string> choices;  // Allowed values of the first argument, likewise.
};

const CLI::App& ProgramOf(const CLI::App& app) {
  return app.get_parent() == nullptr ? app : *app.get_parent();
}

// The allowed values of an option or argument; empty: any.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "TYPE") return TypeNames();
  if (!absl::StrContains(type, '|')) return {};
  return absl::StrSplit(type, '|');
}

// The allowed values of the first argument.
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

// Completions after an option that takes a value: its choices, or files.
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
    // Before the program's, so that the command's own take precedence.
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
