// SPDX-License-Identifier: Apache-2.0
//
// How a job that takes more memory than there is on its device is divided into panels that fit.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "server/device/panel.h"

namespace gemmd {

// Bytes of a device's memory that a job takes beside the blocks in which its matrices lie: those
// that are brought, D, the kernel's workspace, and copies of what a kernel cannot use as it lies.
// Without a kernel there is no workspace.
// Errors: those of LayOutJob and of the kernel.
absl::StatusOr<int64_t> MemoryOf(const Problem& problem, const JobPlaces& places,
                                 const Kernel* kernel);

class PanelPlan {
 public:
  // Panels that take at most so many bytes each: few, whole matrices first.
  // Errors: ResourceExhausted where not even a panel of 8 x 8 elements of D would fit, or none that
  // the places allow; says what the least one takes. Those of MemoryOf.
  static absl::StatusOr<PanelPlan> Of(const Problem& problem, const JobPlaces& places,
                                      const Kernel* kernel, int64_t most_bytes);

  int64_t count() const;
  // They follow each other in memory of D, as far as can be.
  Panel at(int64_t index) const;

 private:
  // Each but the last ones along its axis is so long.
  struct Steps {
    int64_t matrices = 0;
    int64_t rows = 0;
    int64_t columns = 0;
  };
  class Search;

  explicit PanelPlan(const Problem& problem)
      : whole_{problem.batch, problem.m, problem.n}, steps_(whole_) {}

  Steps whole_;
  Steps steps_;
};

}  // namespace gemmd
