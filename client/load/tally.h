// SPDX-License-Identifier: Apache-2.0
//
// What became of calls: one sample each, and the histograms that they add up to.
//
// The one thing to get wrong is where the clock starts. `latency` counts from the time at which a
// call was due, so that a server that stalls is charged for every call that had to wait meanwhile,
// those not yet sent included; `service` counts from the actual send and is there to compare.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/load/histogram.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// Canonical status codes: 0 to 16.
inline constexpr size_t kCallCodes = 17;
using CallsByCode = std::array<int64_t, kCallCodes>;
size_t CodeIndex(absl::StatusCode code);  // A code that is none counts as the last.
int64_t FailedOf(const CallsByCode& calls);

// One call. Times are of the monotone clock.
struct CallSample {
  size_t product = 0;       // In the mix.
  int64_t intended_ns = 0;  // When it was due; in a closed loop, when its turn came.
  int64_t admitted_ns = 0;  // When the limit of calls in flight let it pass; not before intended.
  int64_t sent_ns = 0;
  int64_t ended_ns = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  v1::Timing timing = {};  // The server's; where the code is OK.
  int64_t operations = 0;
  int64_t bytes = 0;
  absl::string_view kernel = {};  // Where the code is OK.
  absl::string_view device = {};
};

// The stages of the server's timing in the order in which they happen, then its total, then what is
// left of the service time: the network, gRPC and this client.
inline constexpr std::array kStageNames = {"receive",  "queue",        "copy_in", "compute",
                                           "copy_out", "send_prepare", "total",   "outside"};
inline constexpr size_t kCallStages = kStageNames.size();
enum CallStage : size_t {
  kReceive,
  kQueue,
  kCopyIn,
  kCompute,
  kCopyOut,
  kSendPrepare,
  kTotal,
  kOutside
};

// The calls that one kernel answered on one device.
struct KernelTally {
  std::string kernel;
  std::string device;
  Histogram latency;
  std::array<double, kCallStages> stage_sums_ns = {};

  double StageMeanNs(size_t stage) const;
};

struct Tally {
  Histogram latency;         // From when the call was due to its answer, for calls that ended OK.
  Histogram service;         // From the actual send to the answer, for calls that ended OK.
  Histogram punctual;        // The latency without the send error, for calls that ended OK.
  Histogram blocked;         // Waiting for the limit of calls in flight, for all calls.
  Histogram send_error;      // From when it could be sent to when it was, for all calls.
  Histogram failed_latency;  // From when the call was due, for calls that failed.
  std::array<Histogram, kCallStages> stages;
  std::vector<Histogram> latency_by_product;
  // In the order in which they were first seen. A server that names no end of kernels fills the
  // last one, kOtherKernels.
  std::vector<KernelTally> kernels;
  CallsByCode calls_by_code = {};
  int64_t operations = 0;
  int64_t bytes = 0;

  void Add(const CallSample& sample);
  void Merge(const Tally& other);

  int64_t calls() const;
  int64_t ok() const { return calls_by_code[0]; }
  int64_t failed() const { return calls() - ok(); }
};

inline constexpr size_t kMostKernels = 64;
inline constexpr size_t kMostNameBytes = 200;
inline constexpr absl::string_view kOtherKernels = "(other kernels)";

// "OK 120, UNAVAILABLE 3"; only those that there are.
std::string CodesText(const CallsByCode& calls_by_code);

// "3 of 123 (UNAVAILABLE 3)": those that failed.
std::string FailedCodesText(const CallsByCode& calls_by_code);

}  // namespace gemmd
