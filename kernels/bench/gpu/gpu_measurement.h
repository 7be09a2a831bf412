// SPDX-License-Identifier: Apache-2.0
//
// What gemmbench learns of a row on a GPU, and the report that holds it. Plain data.
//
// The visitors below name every field once: for writing, reading and tables alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/bench/shape.h"

namespace gemmd::bench {

// Of a library, beside the row and in turns with it.
struct LibraryTime {
  std::string how;
  double seconds = 0;
  double ratio = 0;  // The row's speed over the library's: the median of all turns.

  friend bool operator==(const LibraryTime&, const LibraryTime&) = default;
};

struct GpuMeasurement {
  std::string kernel;
  std::string instruction;
  Shape shape = {};
  std::string orders;
  int64_t leading_dimension_offset = 0;
  bool is_integer = false;
  bool is_sparse = false;  // Then operations are counted as if A were dense.

  int64_t elements = 0;  // Of D.
  int64_t compared = 0;  // With the simulator, bit for bit.
  int64_t mismatches = 0;
  std::string problem;  // Empty, or what is wrong.

  double seconds = 0;                    // Median of a whole launch.
  double spread = 0;                     // The middle half's width over the median.
  std::optional<double> kernel_seconds;  // Without packing; absent where nothing is packed.
  int samples = 0;
  int operand_sets = 0;
  int sm_clock_mhz = 0;           // Median while it ran.
  std::optional<double> ceiling;  // Operations a second that the instruction can do at most.
  std::optional<LibraryTime> cublaslt;
  std::optional<LibraryTime> cusparselt;

  bool is_right() const { return mismatches == 0 && problem.empty(); }
  double rate() const { return shape.operations() / seconds; }
  double RateOf(const LibraryTime& library) const { return shape.operations() / library.seconds; }

  friend bool operator==(const GpuMeasurement&, const GpuMeasurement&) = default;
};

struct GpuReport {
  std::string gpu;
  std::string chip;
  int multiprocessors = 0;
  int max_sm_clock_mhz = 0;
  std::string driver;
  std::string cuda;
  std::string cublaslt;    // Version; empty where it was not there.
  std::string cusparselt;  // The same.
  std::string commit;
  std::string date;
  std::string command;
  std::vector<GpuMeasurement> measurements;

  friend bool operator==(const GpuReport&, const GpuReport&) = default;
};

template <typename Visit, typename Time>
void VisitLibraryTime(Visit&& visit, Time& time) {
  visit("how", time.how);
  visit("seconds", time.seconds);
  visit("ratio", time.ratio);
}

template <typename Visit, typename Measurement>
void VisitMeasurement(Visit&& visit, Measurement& m) {
  visit("kernel", m.kernel);
  visit("instruction", m.instruction);
  visit("m", m.shape.m);
  visit("n", m.shape.n);
  visit("k", m.shape.k);
  visit("orders", m.orders);
  visit("leading_dimension_offset", m.leading_dimension_offset);
  visit("is_integer", m.is_integer);
  visit("is_sparse", m.is_sparse);
  visit("elements", m.elements);
  visit("compared", m.compared);
  visit("mismatches", m.mismatches);
  visit("problem", m.problem);
  visit("seconds", m.seconds);
  visit("spread", m.spread);
  visit("kernel_seconds", m.kernel_seconds);
  visit("samples", m.samples);
  visit("operand_sets", m.operand_sets);
  visit("sm_clock_mhz", m.sm_clock_mhz);
  visit("ceiling", m.ceiling);
  visit("cublaslt", m.cublaslt);
  visit("cusparselt", m.cusparselt);
}

template <typename Visit, typename Report>
void VisitReport(Visit&& visit, Report& report) {
  visit("gpu", report.gpu);
  visit("chip", report.chip);
  visit("multiprocessors", report.multiprocessors);
  visit("max_sm_clock_mhz", report.max_sm_clock_mhz);
  visit("driver", report.driver);
  visit("cuda", report.cuda);
  visit("cublaslt", report.cublaslt);
  visit("cusparselt", report.cusparselt);
  visit("commit", report.commit);
  visit("date", report.date);
  visit("command", report.command);
  visit("measurements", report.measurements);
}

}  // namespace gemmd::bench
