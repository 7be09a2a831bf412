// SPDX-License-Identifier: Apache-2.0
//
// The goals of the data plane, each with a function that measures it and prints its rows.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gemmd/client.h"
#include "gemmd/storage_types.h"
#include "tests/data_plane/measure.h"

namespace gemmd {

// The daemons to call, on this machine. An empty address: there is none.
struct Targets {
  std::string tcp;
  std::string unix_socket;
  std::string alone;         // A daemon that runs each product alone, over a unix socket.
  std::string baseline_tcp;  // A daemon of an older commit, which may not support resident tensors.
  std::string baseline_unix;
  std::string device = "cpu";
  int pid = 0;  // The process of the daemon at `tcp` and `unix_socket`; 0: not known.
  // Commands that print the seconds of a product: of that of MeasureWeights by NumPy, and of 2048^3
  // by the library of the kernel whose name is appended. Empty: not measured.
  std::string numpy;
  std::string library;
  std::string triton;  // Where triton_server.py serves its model.
  int64_t transfer_mib = 4096;
  double seconds = 2;  // For one measurement.
  int turns = 5;

  bool is_gpu() const { return device.starts_with("cuda"); }
};

// Products whose 64 MiB of operands, or of results, are sent with them over one connection.
void MeasureInline(const Targets& targets);
// Makes one of these calls for each line of standard input, `up` or `down`, and prints its seconds.
// For clients in other languages, which are measured in turns with this one.
void AnswerInline(const Targets& targets);
// Put and Get over one and two connections, and over four; on a GPU, until the tensor is there.
// Also the memory that the daemon uses beside the tensor.
void MeasureTransfers(const Targets& targets);
void MeasureStripedTransfers(const Targets& targets);
// 64^3 in bf16: calls, streams of products, streams of lists of products, and one caller alone.
void MeasureSmallUnary(const Targets& targets);
void MeasureSmallStreams(const Targets& targets);
void MeasureSmallLists(const Targets& targets);
void MeasureSmallAlone(const Targets& targets);
// 64 callers with one weight matrix, stacked and not.
void MeasureStacking(const Targets& targets);
// 8 x 384 times a resident (30522 x 384)^T in f32, beside NumPy in another process.
void MeasureWeights(const Targets& targets);
// 2048^3 in f32 on the CPU, all resident, beside its library in another process.
void MeasureCpu(const Targets& targets);
// 32 callers of a model with a resident B, beside Triton, in KServe's protocol.
void MeasureModel(const Targets& targets);
// On a GPU: 8192^3 with all matrices resident, 16x8192x8192 with B resident, and four callers of
// 4096^3 with none.
void MeasureLarge(const Targets& targets);

Client Connect(const std::string& address);

// The value; ends the program if there is none.
template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(value.status().ToString());
  return *std::move(value);
}

// The median over products, in microseconds, of a time in nanoseconds.
template <typename Ns>
double MedianUs(const std::vector<Timing>& products, const Ns& ns) {
  std::vector<double> us;
  for (const Timing& product : products) us.push_back(1e-3 * static_cast<double>(ns(product)));
  return Median(us);
}

// Prints the median of each stage of these products as a row without a goal.
void PrintStages(const std::string& what, const std::vector<Timing>& products);

// Numbers between -1 and 1, determined by the seed.
std::vector<Bf16> RandomBf16(int64_t count, uint32_t seed);

}  // namespace gemmd
