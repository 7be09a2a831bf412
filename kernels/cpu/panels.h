// SPDX-License-Identifier: Apache-2.0
//
// Panels: parts of a product that are passed to a library one at a time, so that an aborted product
// ends soon. A library call cannot be interrupted.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/engine.h"
#include "kernels/matrix/abort.h"

namespace gemmd {

// The largest panel; those at the ends may be smaller.
struct PanelShape {
  int64_t m;
  int64_t n;
  int64_t k;

  friend bool operator==(const PanelShape&, const PanelShape&) = default;
};

// Operations per second of one thread, used to keep the engine's calls short on this processor.
double PanelRate(const Engine& engine);

// The whole product if one call on `threads` threads takes at most about 20 ms. The shape depends
// on nothing else, so that the same request gives the same bits. Panels along k add to D: exact
// sums stay exact, and floats are rounded once more for each panel, as the libraries do for each of
// their own blocks.
PanelShape PanelOf(const Engine& engine, const PlainProduct& product, int threads);

// Computes the product in panels of this shape.
// Errors: Cancelled once the flag is set; those of the engine. Threads: parallel inside, on the
// calling thread's OpenMP threads.
absl::Status MultiplyInPanels(const Engine& engine, const PlainProduct& product,
                              const PanelShape& panel, AbortFlag abort);

}  // namespace gemmd
