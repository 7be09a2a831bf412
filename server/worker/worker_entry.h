// SPDX-License-Identifier: Apache-2.0
//
// What the main function of a worker does, whatever its runtime is.
#pragma once

#include <string>
#include <vector>

#include "server/worker/worker.h"

namespace gemmd {

// usage: WORKER ORDINAL PARENT_PID MEMORY_LIMIT_BYTES TENSOR_LIMIT_BYTES SPIN_NS CONFINED, started
// by the front with kWorkerSocket and kWorkerStaging open. CONFINED is 1 for a worker that gives up
// its rights (confinement.h) but those to write to /dev, to its own files of /proc and to
// `writable`. The process ends with its parent. It ignores the signals that a terminal or an init
// system sends to all processes of a service, so that the front can finish its work first.
//
// With --version it prints what it is, and that is all.
//
// Returns the exit code: 0 where the front asked for the end, 1 otherwise, 2 for bad arguments.
int EnterWorker(int argc, const char* const* argv, GpuRuntime& runtime, MeasureGpu measure,
                std::vector<std::string> writable);

}  // namespace gemmd
