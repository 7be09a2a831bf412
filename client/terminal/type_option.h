// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gemmd {

// Adds an option whose value is the name of an element type.
CLI::Option* AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                           const std::string& help);

}  // namespace gemmd
