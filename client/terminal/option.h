// SPDX-License-Identifier: Apache-2.0
//
// Options of the commands, added, described and completed without the header of the library that
// parses them; and the errors for a wrong command line.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/output_file.h"
#include "gemmd/client.h"
#include "gemmd/v1/tensors.pb.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace CLI {
class App;
}

namespace gemmd {

// The names of all element types, as options take them.
std::vector<std::string> TypeNames();

std::string TypeText(v1::ElementType type);

// For the check of an option that takes one of some names, at least one: empty where it got one of
// them, otherwise what it got, what it takes and which of that looks most like it.
std::function<std::string(const std::string&)> OneOf(std::vector<std::string> names);

// The help that the arguments ask for, though others of them are wrong; empty where they ask for
// none.
std::string HelpAskedFor(const CLI::App& app);

// Why the program `app` refuses the arguments that it was to parse: "multiply: got option --randm,
// want one of its options, such as --random; gemmctl multiply --help lists them".
std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error);

// "TYPE is f64, f32, ... or s32.", for the end of the help of commands with such options.
std::string TypeHelp();

// An option that was added, to say more of it. CLI11's header takes longer to compile than the
// commands do, so option.cc includes it for all of them.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption& Group(const std::string& heading);  // Where the help lists it.
  CommandOption& TypeName(const std::string& name);  // How the help calls its value.
  CommandOption& ShowDefault();                      // The help names its value of now.
  CommandOption& Require();
  CommandOption& Need(const CommandOption& other);     // It is refused without the other one.
  CommandOption& Exclude(const CommandOption& other);  // It is refused beside the other one.
  // `refuse` gives what is wrong with a value, or nothing.
  CommandOption& Check(const std::function<std::string(const std::string&)>& refuse);

 private:
  CLI::Option* option_;
};

// Each adds an option that sets `value`, which outlives the app. Numbers are decimal, from `least`
// to `most`.
CommandOption AddOption(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help);
CommandOption AddOption(CLI::App& app, const std::string& name, int& value, const std::string& help,
                        int least, int most = std::numeric_limits<int>::max());
CommandOption AddOption(CLI::App& app, const std::string& name, int64_t& value,
                        const std::string& help, int64_t least,
                        int64_t most = std::numeric_limits<int64_t>::max());
CommandOption AddOption(CLI::App& app, const std::string& name, uint64_t& value,
                        const std::string& help);
CommandOption AddOption(CLI::App& app, const std::string& name, double& value,
                        const std::string& help,
                        double least = -std::numeric_limits<double>::infinity(),
                        double most = std::numeric_limits<double>::infinity());
CommandOption AddFlag(CLI::App& app, const std::string& name, bool& value, const std::string& help);

// How many extents a shape has, and what each may be.
struct ShapeRule {
  size_t min_extents = 1;
  size_t max_extents = 3;
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};

// Adds an option whose value is a shape: extents with commas or the letter x between them. It
// replaces `value`.
CommandOption AddShape(CLI::App& app, const std::string& name, std::vector<int64_t>& value,
                       const std::string& help, const ShapeRule& rule);

// Adds an option whose value is the name of an element type.
CommandOption AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                            const std::string& help);

// Adds an option whose value is one of `choices`, all of which the help names.
CommandOption AddChoice(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help, const std::vector<std::string>& choices);

// Sets the text after the help of the options.
void SetFooter(CLI::App& app, const std::string& text);

// The element type that an option names; `otherwise` where its value is empty.
v1::ElementType TypeOf(const std::string& name,
                       v1::ElementType otherwise = v1::ELEMENT_TYPE_UNSPECIFIED);

// "row" or "column".
v1::Order OrderOf(const std::string& name);

// Flags of encryption and identity, which all tools share. The token itself is no flag, because
// everybody sees the command lines of a machine.
struct SecurityFlags {
  TlsOptions tls = {};
  std::string token_file = {};
  bool use_proxy = false;
};

// What the variables GEMMD_TLS_CA, GEMMD_TLS_CERT, GEMMD_TLS_KEY, GEMMD_TLS_SERVER_NAME and
// GEMMD_TOKEN_FILE say: `value_of` gives that of a variable, empty where it is not set.
SecurityFlags SecurityFlagsOfEnvironment(const std::function<std::string(const char*)>& value_of);

// Their values of now are the defaults. `flags` outlives the app.
void AddSecurityFlags(CLI::App& app, SecurityFlags& flags);

// The files that are read.
std::vector<NamedFile> FilesOf(const SecurityFlags& flags);

// Reads the token. Errors: InvalidArgument where its file cannot be read or holds none.
absl::Status ApplySecurityFlags(const SecurityFlags& flags, ClientOptions& options);

// `app` is the program or one of its commands.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

}  // namespace gemmd
