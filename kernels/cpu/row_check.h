// SPDX-License-Identifier: Apache-2.0
//
// Checks that the libraries compute correctly on this processor. Both choose code by processor, and
// a release may give wrong results or crash on a processor it was not tested on: for certain
// depths, for remainders of m and n, or on several threads.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace gemmd {

// A row that must not be used here (Target::faulty_rows).
struct RowFault {
  const Kernel* kernel;
  std::string reason;  // "129 x 65 x 63: got a wrong product"
};

// Computes some products of awkward shapes and of small integers, whose sums are exact in every
// type, and compares every element. Skips products that the row does not support. Errors: DataLoss
// for a wrong product, otherwise the row's own. Threads: on the calling thread's OpenMP threads
// (SetThreads).
absl::Status CheckRow(const Kernel& kernel, const Target& target);

// The rows that fail CheckRow, crash or hang in it. Rows are checked in a child process, on
// `threads` threads (0: as many as there are cores). If no process can be started or memory is
// short, rows count as correct. Threads: called before any other thread exists, and before OpenMP
// is used.
std::vector<RowFault> FindFaultyRows(absl::Span<const Kernel> kernels, const Target& target,
                                     int threads);

}  // namespace gemmd
