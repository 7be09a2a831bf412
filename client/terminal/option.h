// SPDX-License-Identifier: Apache-2.0
//
// Options of the command line whose values are names out of a short list.
#pragma once

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

// Adds an option whose value is the name of an element type.
CLI::Option* AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                           const std::string& help);

// Adds an option whose value is one of `choices`, all of which the help names.
CLI::Option* AddChoice(CLI::App& app, const std::string& name, std::string& value,
                       const std::string& help, const std::vector<std::string>& choices);

// "row" or "column".
v1::Order OrderOf(const std::string& name);

}  // namespace gemmd
