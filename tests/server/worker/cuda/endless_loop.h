// SPDX-License-Identifier: Apache-2.0
//
// A kernel that does harm, for tests of what becomes of the others.
#pragma once

#include "absl/status/status.h"

namespace gemmd {

// Runs a kernel without end on the current GPU and waits for it: until this process ends.
// Errors: those of the launch.
absl::Status RunEndlessLoop();

}  // namespace gemmd
