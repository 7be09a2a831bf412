// SPDX-License-Identifier: Apache-2.0
//
// The worker of a device of the host: runs one launch after the other for the front, in memory that
// both share, until the front is gone. What ends it ends no more than the product that it runs.
#pragma once

namespace gemmd {

// The main function of such a worker.
//
// usage: WORKER DEVICE PARENT_PID THREADS POISONS SPIN_NS CONFINED, started by the front with
// kWorkerSocket, kWorkerRings and, at kWorkerStaging, SharedMemory open. DEVICE is "cpu" or
// "sim:sm_90" and the like. POISONS is 1 where no launch is to leave anything in the memory of its
// scratch. CONFINED is 1 for a worker that gives up its rights (confinement.h) but those to write
// to its own files of /proc. The process ends with its parent, and ignores the signals that a
// terminal or an init system sends to all processes of a service.
//
// With --version it prints what it is, and that is all.
//
// Returns the exit code: 0 where the front asked for the end, 1 otherwise, 2 for bad arguments.
int EnterHostWorker(int argc, const char* const* argv);

}  // namespace gemmd
