// SPDX-License-Identifier: Apache-2.0
//
// A faulty kernel, for tests of its effect on others.
#pragma once

#include "absl/status/status.h"

namespace gemmd {

// Runs an endless kernel on the current GPU and waits for it until this process ends. Errors: those
// of the launch.
absl::Status RunEndlessLoop();

}  // namespace gemmd
