// SPDX-License-Identifier: Apache-2.0
//
// Scripts that have a shell complete a program's commands, options and their values, made from the
// tables that its help is made from.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace gemmd {

// `app` is the program or one of its commands.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

}  // namespace gemmd
