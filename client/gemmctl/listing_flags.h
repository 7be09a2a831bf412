// SPDX-License-Identifier: Apache-2.0
//
// The flags of the commands that list and draw what a server knows: kernels, instructions,
// fragments, and what it does.
#pragma once

#include <CLI/CLI.hpp>

#include "client/gemmctl/flags.h"

namespace gemmd {

void AddKernelsFlags(CLI::App& app, KernelsFlags& flags);
void AddInstructionsFlags(CLI::App& app, InstructionsFlags& flags);
void AddTopFlags(CLI::App& app, TopFlags& flags);
void AddFragmentFlags(CLI::App& app, FragmentFlags& flags);

}  // namespace gemmd
