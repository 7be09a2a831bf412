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
#include "server/crossing/protocol.h"
#include "server/crossing/staging.h"
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

// Errors: the reason for which the worker cannot go on; OK where the front closed the socket.
absl::Status RunWorker(const WorkerOptions& options, GpuRuntime& runtime, int socket,
                       int staging_file);

}  // namespace gemmd
