// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/library_settings.h"

#include <unistd.h>

#include <cstdlib>

namespace gemmd {

bool IsSetInEnvironment(const char* variable) {
  return getenv(variable) != nullptr;  // NOLINT(concurrency-mt-unsafe)
}

void PreferSettings(absl::Span<const LibrarySetting> settings, char** argv) {
  bool has_new = false;
  for (const LibrarySetting& setting : settings) {
    if (setting.value.empty() || IsSetInEnvironment(setting.variable)) continue;
    setenv(setting.variable, setting.value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    has_new = true;
  }
  if (has_new) execv("/proc/self/exe", argv);
}

}  // namespace gemmd
