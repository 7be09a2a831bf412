// SPDX-License-Identifier: Apache-2.0
//
// The worker of one GPU: does what the front asks for, until the front is gone or the GPU is lost.
// It knows neither gRPC nor queues. Many requests are under way at once (run.h): one thread gives
// the GPU what there is room for, looks how far it has come, and answers what is done.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/crossing/channel.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

// Measures the open GPU, with the staging area to work in, and fills in the record.
using MeasureGpu = std::function<absl::Status(GpuRuntime&, const GpuDescription&,
                                              absl::Span<std::byte> staging, GpuRates&)>;

struct WorkerOptions {
  int ordinal = 0;
  // For jobs and blocks; 0: nine tenths of what is free at the start.
  int64_t memory_limit_bytes = 0;
  // For blocks, of that; 0: four fifths of it.
  int64_t tensor_limit_bytes = 0;
  int64_t spin_ns = 0;  // Time to look for the next record before it sleeps.
  MeasureGpu measure;
  // Whether it gives up rights, and in which folders it may write all the same.
  bool is_confined = false;
  std::vector<std::string> writable = {};
};

// Errors: the reason for which the worker cannot go on; OK where the front closed its end.
absl::Status RunWorker(const WorkerOptions& options, GpuRuntime& runtime, Channel& channel,
                       int staging_file);

// How fast a GPU is: each kernel with every multiprocessor full, its memory, and the way to it.
// Takes a second or two: one product for each kernel that the GPU can run and that this build has
// code for. Kernels that there is no time for keep the rate 0, which says so.
//
// Errors: those of the runtime, but for launches that are refused.
absl::Status MeasureGpuRates(GpuRuntime& runtime, const GpuDescription& gpu,
                             absl::Span<std::byte> staging, GpuRates& rates);

// Has the system kill this process when the thread that started it ends. False where the parent is
// another process already, because it ended before.
bool DieWithParent(int64_t parent);

// The main function of a GPU's worker, whatever its runtime is.
//
// usage: WORKER ORDINAL PARENT_PID MEMORY_LIMIT_BYTES TENSOR_LIMIT_BYTES SPIN_NS CONFINED, started
// by the front with kWorkerSocket, kWorkerRings and kWorkerStaging open. CONFINED is 1 for a worker
// that gives up its rights (confinement.h) but those to write to /dev, to its own files of /proc
// and to `writable`. The process ends with its parent. It ignores the signals that a terminal or an
// init system sends to all processes of a service, so that the front can finish its work first.
//
// With --version it prints what it is, and that is all.
//
// Returns the exit code: 0 where the front asked for the end, 1 otherwise, 2 for bad arguments.
int EnterWorker(int argc, const char* const* argv, GpuRuntime& runtime, MeasureGpu measure,
                std::vector<std::string> writable);

}  // namespace gemmd
