// SPDX-License-Identifier: Apache-2.0
//
// A part of D that is computed by a job of its own, where the matrices of the whole do not fit into
// the memory of a device together. k is never divided: every element of D is one sum, and has the
// bits that it has in the whole, with the same kernel.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "server/crossing/job_layout.h"
#include "server/device/job.h"

namespace gemmd {

// Several whole matrices of a batch, or some rows and columns of one.
struct Panel {
  struct Extent {
    int64_t first = 0;  // Along lines of matrices: a multiple of 8, so that it begins a byte.
    int64_t count = 0;
  };
  Extent matrices;
  Extent rows;
  Extent columns;
};

// The problem of a panel. An operand in memory of the host that is divided along its lines is to be
// gathered into lines without gaps, and such a D is scattered; all others keep the lines and the
// strides of the whole.
struct PanelProblem {
  Problem problem;
  // Where each matrix begins: in its block, or, in memory of the host, counted from where that of
  // the whole begins.
  JobPlaces places;
};
PanelProblem ProblemOfPanel(const Problem& whole, const JobPlaces& places, const Panel& panel);

// What the sources of a panel point at.
using PanelPieces = std::array<std::vector<Piece>, SourcePieces::kMost>;

// The job of a panel. Where D does not go into a block, `whole` has memory for it. Fills `pieces`,
// which stay until the job is done.
Job JobOfPanel(const Job& whole, const JobPlaces& places, const Panel& panel, PanelPieces& pieces);

}  // namespace gemmd
