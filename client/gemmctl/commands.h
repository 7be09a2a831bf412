// SPDX-License-Identifier: Apache-2.0
//
// The commands of gemmctl. Each prints its result or its error and says how it went.
#pragma once

#include "client/gemmctl/flags.h"
#include "client/terminal/console.h"

namespace gemmd {

ExitCode RunMultiply(const GlobalFlags& global, const MultiplyFlags& flags, const Console& console);
ExitCode RunExplain(const GlobalFlags& global, const ExplainFlags& flags, const Console& console);
ExitCode RunRandom(const RandomFlags& flags, const Console& console);
ExitCode RunKernels(const GlobalFlags& global, const KernelsFlags& flags, const Console& console);
ExitCode RunInstructions(const GlobalFlags& global, const InstructionsFlags& flags,
                         const Console& console);
ExitCode RunFragment(const GlobalFlags& global, const FragmentFlags& flags, const Console& console);
ExitCode RunDevices(const GlobalFlags& global, const Console& console);
ExitCode RunInfo(const GlobalFlags& global, const Console& console);
ExitCode RunTop(const GlobalFlags& global, const TopFlags& flags, const Console& console);
ExitCode RunHealth(const GlobalFlags& global, const HealthFlags& flags, const Console& console);

}  // namespace gemmd
