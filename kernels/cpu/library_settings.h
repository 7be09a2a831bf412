// SPDX-License-Identifier: Apache-2.0
//
// Settings that OpenBLAS and OpenMP read from the environment only while they are loaded. A program
// that wants others must set them and start anew.
#pragma once

#include <string>

#include "absl/types/span.h"

namespace gemmd {

struct LibrarySetting {
  const char* variable;
  std::string value;  // Empty if the library's own choice is best.
};

// Sets the variables that the user has not set and, if there are any, starts this program anew with
// its arguments. Returns if there is nothing to set or if starting anew failed; the program is then
// slower, not wrong.
// Threads: called by main functions, before any other thread exists.
void PreferSettings(absl::Span<const LibrarySetting> settings, char** argv);

// Whether the user has set the variable.
// Threads: called by main functions, before any other thread exists.
bool IsSetInEnvironment(const char* variable);

}  // namespace gemmd
