// SPDX-License-Identifier: Apache-2.0
//
// The flags that describe a product: the same for `multiply` and `explain`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "client/gemmctl/flags.h"

namespace gemmd {

// An option whose value is the name of an element type.
CLI::Option* AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                           const std::string& help);

// Adds positionals and options that set `flags`, which outlives the app.
void AddProductFlags(CLI::App& app, ProductFlags& flags);

}  // namespace gemmd
