// SPDX-License-Identifier: Apache-2.0
//
// Checks and times rows on a device beside the libraries.
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
  double alone_seconds = 0;  // 0: not measured alone.
  int host_launches = 0;     // Launches for measuring host time; 0: not measured.
};

// Available libraries. Borrowed.
struct Libraries {
  Library* cublaslt = nullptr;
  Library* cusparselt = nullptr;
};

// Callbacks for events.
struct Observer {
  // Called before each row, and before drawing operands for the first row of a group.
  std::function<void(const Kernel& kernel)> begins;
  // Called after each row with its measurement, or an error; Unimplemented if the row does not
  // support the problem.
  std::function<void(const Kernel& kernel, absl::StatusOr<GpuMeasurement> result)> done;
  // Called if a library does not support the problem of a row.
  std::function<void(const Kernel& kernel, const Library& library, const absl::Status& why)>
      refused;
};

// Measures rows that the device supports, with products of one shape. Rows with the same problem
// share operands and the libraries' search.
//
// A row is checked before it is timed, on poisoned memory, and must give the same bits afterwards.
// Errors: Internal if the device failed; it is then unusable.
absl::Status MeasureRows(Device& device, const std::vector<const Kernel*>& rows, const Shape& shape,
                         const GpuSettings& settings, const Libraries& libraries,
                         const Observer& observer);

}  // namespace gemmd::bench
