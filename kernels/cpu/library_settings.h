// SPDX-License-Identifier: Apache-2.0
//
// What OpenBLAS and OpenMP read from the environment, and only while they are loaded: a program
// that wants other settings must set them and start over.
#pragma once

#include <string>

#include "absl/types/span.h"

namespace gemmd {

struct LibrarySetting {
  const char* variable;
  std::string value;  // Empty: what the library does by itself is best.
};

// Sets those variables that the user has not set, and where there are any starts this program anew
// with its arguments. Returns where there is nothing to set, or where starting anew failed: then
// the program is slower, not wrong.
// Threads: called by main functions, before any other thread exists.
void PreferSettings(absl::Span<const LibrarySetting> settings, char** argv);

// Whether the user has set the variable. Threads: as PreferSettings.
bool IsSetInEnvironment(const char* variable);

}  // namespace gemmd
