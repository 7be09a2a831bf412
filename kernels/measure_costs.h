// SPDX-License-Identifier: Apache-2.0
//
// Measures what launches on this host cost beside their multiplications (host_costs.h).
#pragma once

#include "kernels/host_costs.h"
#include "kernels/mma/element_type.h"

namespace gemmd {

// Copying operands into the types that rows of the processor compute in. All these measure the
// calling thread alone, which must have been given one thread (SetThreads), and take some
// milliseconds.
CopyCosts MeasureCopies();

// The epilogue of accumulators of f32, or of f64 and s32.
EpilogueCosts MeasureEpilogue(ElementType type);

// Starting one thread and waiting for its end, in seconds of the wall.
double MeasureThreadStart();

double MeasureMemoryBytesPerSecond();

// Memory that the system gives anew and that is filled with zeros, as that of a large D.
double MeasureClearedBytesPerSecond();

}  // namespace gemmd
