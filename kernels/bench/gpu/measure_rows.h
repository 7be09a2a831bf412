// SPDX-License-Identifier: Apache-2.0
//
// Rows of one problem, checked and timed on a device beside the libraries.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/bench/gpu/device.h"
#include "kernels/bench/gpu/gpu_measurement.h"
#include "kernels/bench/gpu/library.h"
#include "kernels/bench/gpu/turns.h"
#include "kernels/bench/problem.h"

namespace gemmd::bench {

struct GpuSettings {
  Orders orders;
  int64_t leading_dimension_offset = 0;
  Output output;
  TurnSettings turns;
  double alone_seconds = 0;  // 0: nobody runs alone.
  int host_launches = 0;     // For the host's time of a launch; 0: it is not measured.
};

// Libraries, as far as they are there. Borrowed.
struct Libraries {
  Library* cublaslt = nullptr;
  Library* cusparselt = nullptr;
};

// Told what happens.
struct Observer {
  // Before each row, and before the operands of the first of some.
  std::function<void(const Kernel& kernel)> begins;
  // After each: its measurement, or why there is none; Unimplemented where it does not take such a
  // problem.
  std::function<void(const Kernel& kernel, absl::StatusOr<GpuMeasurement> result)> done;
  // A library does not do the problem of a row.
  std::function<void(const Kernel& kernel, const Library& library, const absl::Status& why)>
      refused;
};

// Measures the rows, which the device has, with products of one shape. Rows that take the same
// problem share operands and the libraries' search.
//
// A row is checked before it is timed, on poisoned memory, and must give the same bits afterwards.
// Errors: Internal where the device failed; nothing works on it then.
absl::Status MeasureRows(Device& device, const std::vector<const Kernel*>& rows, const Shape& shape,
                         const GpuSettings& settings, const Libraries& libraries,
                         const Observer& observer);

}  // namespace gemmd::bench
