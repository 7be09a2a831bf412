// SPDX-License-Identifier: Apache-2.0
//
// The worker of one GPU: executes requests of the front, until the front is gone or the GPU is
// lost. Without gRPC or queues. Many requests run concurrently (run.h): one thread enqueues work on
// the GPU, polls its progress, and answers finished requests.
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

// Measures the open GPU, using the staging area, and fills in the record.
using MeasureGpu = std::function<absl::Status(GpuRuntime&, const GpuDescription&,
                                              absl::Span<std::byte> staging, GpuRates&)>;

struct WorkerOptions {
  int ordinal = 0;
  // For jobs and blocks; 0: nine tenths of the memory free at the start.
  int64_t memory_limit_bytes = 0;
  // The part for blocks; 0: four fifths.
  int64_t tensor_limit_bytes = 0;
  int64_t spin_ns = 0;  // Time to spin for the next record before sleeping.
  MeasureGpu measure;
  // Whether it is confined, and in which folders it may still write.
  bool is_confined = false;
  std::vector<std::string> writable = {};
};

// Errors: why the worker cannot continue; OK if the front closed its end.
absl::Status RunWorker(const WorkerOptions& options, GpuRuntime& runtime, Channel& channel,
                       int staging_file);

// How fast a GPU is: each kernel with every multiprocessor full, its memory, and the way to it.
// Takes a second or two: one product for each kernel that the GPU can run and that this build has
// code for. Kernels for which there is no time keep the rate 0. Errors: those of the runtime,
// except refused launches.
absl::Status MeasureGpuRates(GpuRuntime& runtime, const GpuDescription& gpu,
                             absl::Span<std::byte> staging, GpuRates& rates);

// Makes the system kill this process when the thread that started it ends. Returns false if that
// parent has already ended.
bool DieWithParent(int64_t parent);

// The main function of a GPU's worker, for any runtime.
//
// usage: WORKER ORDINAL PARENT_PID MEMORY_LIMIT_BYTES TENSOR_LIMIT_BYTES SPIN_NS CONFINED, started
// by the front with kWorkerSocket, kWorkerRings and kWorkerStaging open. CONFINED is 1 for a
// confined worker (confinement.h), which may write only to /dev, its own files in /proc, and
// `writable`. The process ends with its parent. It ignores the signals that a terminal or an init
// system sends to all processes of a service, so that the front can finish its work first.
//
// With --version it only prints its version. Returns the exit code: 0 if the front asked it to end,
// 1 otherwise, 2 for bad arguments.
int EnterWorker(int argc, const char* const* argv, GpuRuntime& runtime, MeasureGpu measure,
                std::vector<std::string> writable);

}  // namespace gemmd
