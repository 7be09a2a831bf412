// SPDX-License-Identifier: Apache-2.0
//
// Settings that OpenBLAS and OpenMP read from the environment only while they are loaded. A program
// that wants others must set them and start anew.
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

// Sets the variables that the user has not set and, if there are any, starts this program anew with
// its arguments. Returns if there is nothing to set or if starting anew failed; the program is then
// slower, not wrong.
// Threads: called by main functions, before any other thread exists.
void PreferSettings(absl::Span<const LibrarySetting> settings, char** argv);

// Whether the user has set the variable.
// Threads: called by main functions, before any other thread exists.
bool IsSetInEnvironment(const char* variable);

// Which core OpenBLAS should be loaded with: its set of kernels for one family of processors.
//
// OpenBLAS chooses by the processor's vendor and model. On models that are newer than it is, it may
// take a core for far older ones, and its kernels for AVX-512 may be faster than those that it
// takes on AMD processors (f64, 2048^3, Zen 5: 204 against 124 GFLOP/s). A core cannot be changed
// once OpenBLAS is loaded, so each is measured in a process of its own: main starts the program
// anew, and the measured times travel in an environment variable.

// The widest vectors that a core uses or that a processor has, in ascending order.
enum class VectorIsa : uint8_t { kSse, kAvx, kAvx2, kAvx512 };

struct BlasCoreTime {
  std::string core;
  double seconds;  // The same product for every core.
};

// The core to load next: one to measure, or, once it is the last one measured or was measured
// before, the one to keep. `times` is not empty, and its first is that of OpenBLAS's own
// choice. Cores of wider vectors are tried first, and only those of wider vectors than that choice;
// the first that is faster is kept.
std::string NextBlasCore(VectorIsa processor, absl::Span<const BlasCoreTime> times);

// The times as one word for the environment, and back; empty where the text has another form.
std::string FormatBlasCoreTimes(absl::Span<const BlasCoreTime> times);
std::vector<BlasCoreTime> ParseBlasCoreTimes(std::string_view text);

// The name to put into OPENBLAS_CORETYPE before this program is started anew, or an empty string if
// OpenBLAS has the core to keep, which may be the user's. Measures a product of some milliseconds
// if the core has narrower vectors than the processor. Threads: called by main functions, before
// any other thread exists; changes the environment.
std::string BetterBlasCore();

}  // namespace gemmd
