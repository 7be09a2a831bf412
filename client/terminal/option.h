// SPDX-License-Identifier: Apache-2.0
//
// Options of the commands, added and described without the header of the library that parses them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gemmd/v1/tensors.pb.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gemmd {

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
  size_t least_extents = 1;
  size_t most_extents = 3;
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

// "row" or "column".
v1::Order OrderOf(const std::string& name);

}  // namespace gemmd
