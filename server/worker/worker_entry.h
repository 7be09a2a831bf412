// SPDX-License-Identifier: Apache-2.0
//
// What the main function of a worker does, whatever its runtime is.
#pragma once

#include <string>

#include "server/worker/worker.h"

namespace gemmd {

// usage: WORKER ORDINAL PARENT_PID MEMORY_LIMIT_BYTES SPIN_NS, started by the front with
// kWorkerSocket and kWorkerStaging open. The process ends with its parent, and with nothing that a
// terminal or an init system sends to all processes of a service: the front finishes its work
// first.
//
// `script` names a script for the runtime (scripted_runtime.h); empty, as outside of tests: none.
// Returns the exit code: 0 where the front asked for the end, 1 otherwise, 2 for bad arguments.
int EnterWorker(int argc, const char* const* argv, GpuRuntime& runtime, const std::string& script,
                MeasureGpu measure);

}  // namespace gemmd
