// SPDX-License-Identifier: Apache-2.0
//
// The flags that describe a product: the same for `multiply` and `explain`.
#pragma once

#include <CLI/CLI.hpp>

#include "client/gemmctl/flags.h"

namespace gemmd {

// Adds positionals and options that set `flags`, which outlives the app.
void AddProductFlags(CLI::App& app, ProductFlags& flags);

}  // namespace gemmd
