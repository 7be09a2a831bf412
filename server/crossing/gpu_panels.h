// SPDX-License-Identifier: Apache-2.0
//
// Panels: the parts of a launch that would keep a GPU busy for too long, because nothing stops a
// launch between two tiles of D. Every element of D is a sum of its own, so panels do not change a
// bit. A sum is not divided: the kernels begin it with zero. They look for an abort while they
// make a long one (kernels/cuda/device/mainloop/abort.cuh).
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/problem.h"

namespace gemmd {

// How a launch is divided: over the batch first, because a panel packs again what it shares with
// others; a single matrix over columns, or over rows where D has more of those.
struct GpuPanels {
  enum class Axis : uint8_t { kBatch, kRows, kColumns };
  Axis axis = Axis::kBatch;
  int64_t extent = 0;  // The problem is so long along the axis.
  int64_t step = 0;    // Every panel but the last is so long.

  int64_t count() const { return extent == 0 ? 0 : (extent - 1) / step + 1; }
};

// Divides a problem that should take `predicted_ns` into panels of some 10 ms. There may be fewer
// where lines would not begin where LaunchOnStream wants them.
GpuPanels DivideLaunch(const Problem& problem, int64_t predicted_ns);

// The problem of one panel, and its launch: pointers into the matrices of `args`. The panel's
// kernel, workspace and flags are those of the whole.
Problem ProblemOfGpuPanel(const Problem& problem, const GpuPanels& panels, int64_t index);
GemmArgs PanelArgs(const GemmArgs& args, const GpuPanels& panels, int64_t index,
                   const Problem& panel);

}  // namespace gemmd
