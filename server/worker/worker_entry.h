// SPDX-License-Identifier: Apache-2.0
//
// What the main function of a worker does, whatever its runtime is.
#pragma once

#include "server/worker/worker.h"

namespace gemmd {

// usage: WORKER ORDINAL PARENT_PID MEMORY_LIMIT_BYTES TENSOR_LIMIT_BYTES SPIN_NS, started by the
// front with kWorkerSocket and kWorkerStaging open. The process ends with its parent. It ignores
// the signals that a terminal or an init system sends to all processes of a service, so that the
// front can finish its work first.
//
// Returns the exit code: 0 where the front asked for the end, 1 otherwise, 2 for bad arguments.
int EnterWorker(int argc, const char* const* argv, GpuRuntime& runtime, MeasureGpu measure);

}  // namespace gemmd
