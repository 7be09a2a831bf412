// SPDX-License-Identifier: Apache-2.0
//
// Whether the libraries compute rightly on this processor. Both choose their code by the processor,
// and a release may be wrong, or end the process, on one that it was not tested on: for certain
// depths, for what is left over at the end of m and n, on several threads.
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
// type, and compares every element. Products that the row does not take are left out.
// Errors: DataLoss for a wrong product, otherwise the row's own.
// Threads: on the calling thread's OpenMP threads (SetThreads).
absl::Status CheckRow(const Kernel& kernel, const Target& target);

// The rows for which that fails, or that end the process or do not come back while it is done. Rows
// are checked in a process of their own, on `threads` threads, or on as many as there are cores if
// that is 0. Where no process can be started or memory is short, rows count as right.
// Threads: called before any other thread exists, and before OpenMP is used.
std::vector<RowFault> FindFaultyRows(absl::Span<const Kernel> kernels, const Target& target,
                                     int threads);

}  // namespace gemmd
