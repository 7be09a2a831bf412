// SPDX-License-Identifier: Apache-2.0
//
// Options of commands: definition, help and shell completion, without including CLI11's header; and
// errors for a wrong command line.
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
class Option;
class ParseError;
}  // namespace CLI

namespace gemmd {

// The names of all element types, as options take them.
std::vector<std::string> TypeNames();

std::string TypeText(v1::ElementType type);

// A check for an option that takes one of `names` (at least one): returns "" for a valid name, else
// an error with the value, the valid names and the most similar one.
std::function<std::string(const std::string&)> OneOf(std::vector<std::string> names);

// The help that the arguments request, even if other arguments are wrong; empty if they request
// none.
std::string HelpAskedFor(const CLI::App& app);

// The error text for arguments that the program `app` refuses: "multiply: got option --randm, want
// one of its options, such as --random; gemmctl multiply --help lists them".
std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error);

// "TYPE is f64, f32, ... or s32.", for the end of the help of commands with such options.
std::string TypeHelp();

// An added option, for further settings. CLI11's header takes longer to compile than the commands,
// so only option.cc includes it.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption& TypeName(const std::string& name);  // Name of the value in the help.
  CommandOption& ShowDefault();                      // The help shows the current value.
  CommandOption& Require();
  CommandOption& Need(const CommandOption& other);     // Refused without the other option.
  CommandOption& Exclude(const CommandOption& other);  // Refused together with the other option.
  // `refuse` returns what is wrong with a value, or "".
  CommandOption& Check(const std::function<std::string(const std::string&)>& refuse);

 private:
  CLI::Option* option_;
};

// Each adds an option that sets `value`, which must outlive the app. Numbers are decimal, from
// `min` to `max`.
CommandOption AddOption(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help);
CommandOption AddOption(CLI::App& app, const std::string& name, int& value, const std::string& help,
                        int min, int max = std::numeric_limits<int>::max());
CommandOption AddOption(CLI::App& app, const std::string& name, int64_t& value,
                        const std::string& help, int64_t min,
                        int64_t max = std::numeric_limits<int64_t>::max());
CommandOption AddOption(CLI::App& app, const std::string& name, uint64_t& value,
                        const std::string& help);
CommandOption AddOption(CLI::App& app, const std::string& name, double& value,
                        const std::string& help,
                        double min = -std::numeric_limits<double>::infinity(),
                        double max = std::numeric_limits<double>::infinity());
CommandOption AddFlag(CLI::App& app, const std::string& name, bool& value, const std::string& help);

// The number of extents of a shape, and their range.
struct ShapeRule {
  size_t min_extents = 1;
  size_t max_extents = 3;
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
};

// Adds an option whose value is a shape: extents with commas or the letter x between them. It
// replaces `value`.
CommandOption AddShape(CLI::App& app, const std::string& name, std::vector<int64_t>& value,
                       const std::string& help, const ShapeRule& rule);

// Adds an option whose value is the name of an element type.
CommandOption AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                            const std::string& help);

// Adds an option whose value is one of `choices`, which the help lists.
CommandOption AddChoice(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help, const std::vector<std::string>& choices);

// Sets the heading in the help of the options that are added from here on.
void SetGroup(CLI::App& app, const std::string& heading);

// Sets the text after the help of the options.
void SetFooter(CLI::App& app, const std::string& text);

// The element type that an option names; `otherwise` if its value is empty.
v1::ElementType TypeOf(const std::string& name,
                       v1::ElementType otherwise = v1::ELEMENT_TYPE_UNSPECIFIED);

// "row" or "column".
v1::Order OrderOf(const std::string& name);

// Encryption and identity flags, shared by all tools. The token itself is not a flag, because all
// users of a machine can read command lines.
struct SecurityFlags {
  TlsOptions tls = {};
  std::string token_file = {};
  bool use_proxy = false;
};

// Flags from the variables GEMMD_TLS_CA, GEMMD_TLS_CERT, GEMMD_TLS_KEY, GEMMD_TLS_SERVER_NAME and
// GEMMD_TOKEN_FILE.
SecurityFlags SecurityFlagsOfEnvironment();

// The current values are the defaults. `flags` must outlive the app.
void AddSecurityFlags(CLI::App& app, SecurityFlags& flags);

// The files that the flags name.
std::vector<NamedFile> FilesOf(const SecurityFlags& flags);

// Reads the token. Errors: InvalidArgument if its file cannot be read or has no token.
absl::Status ApplySecurityFlags(const SecurityFlags& flags, ClientOptions& options);

// `app` is the program or one of its commands.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

}  // namespace gemmd
