// SPDX-License-Identifier: Apache-2.0
//
// Settings that OpenBLAS and OpenMP read from the environment only while they are loaded. A program
// that needs other settings must set them and restart itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace gemmd {

struct LibrarySetting {
  const char* variable;
  std::string value;  // Empty if the library's own choice is best.
};

// Sets the variables that the user has not set and, if there are any, restarts this program with
// its arguments. Returns if there is nothing to set or the restart failed; the program is then
// slower, but correct. Threads: called by main functions, before any other thread exists.
void PreferSettings(absl::Span<const LibrarySetting> settings, char** argv);

// Whether the user has set the variable.
// Threads: called by main functions, before any other thread exists.
bool IsSetInEnvironment(const char* variable);

// Chooses OpenBLAS's core: its set of kernels for one family of processors. OpenBLAS chooses by the
// processor's vendor and model. On processors newer than itself, it may choose a core for far older
// ones, and its AVX-512 kernels may be faster than those that it chooses on AMD processors (f64,
// 2048^3, Zen 5: 204 against 124 GFLOP/s). A core cannot be changed once OpenBLAS is loaded, so
// each is measured in a separate process: main restarts the program, and passes the measured times
// in an environment variable.

// The widest vectors that a core uses or that a processor has, in ascending order.
enum class VectorIsa : uint8_t { kSse, kAvx, kAvx2, kAvx512 };

struct BlasCoreTime {
  std::string core;
  double seconds;  // The same product for every core.
};

// The core to load next: one to measure, or, if it was already measured, the one to keep. `times`
// is not empty; its first entry is OpenBLAS's own choice. Cores of wider vectors are tried first,
// and only those of wider vectors than that choice; the first that is faster is kept.
std::string NextBlasCore(VectorIsa processor, absl::Span<const BlasCoreTime> times);

// Converts the times to one word for the environment, and back; empty for malformed text.
std::string FormatBlasCoreTimes(absl::Span<const BlasCoreTime> times);
std::vector<BlasCoreTime> ParseBlasCoreTimes(std::string_view text);

// The value for OPENBLAS_CORETYPE before this program is restarted, or an empty string if OpenBLAS
// already has the right core, which may be the user's choice. Measures a product of a few
// milliseconds if the core has narrower vectors than the processor. Threads: called by main
// functions, before any other thread exists; changes the environment.
std::string BetterBlasCore();

}  // namespace gemmd
