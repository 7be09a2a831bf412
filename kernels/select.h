// SPDX-License-Identifier: Apache-2.0
//
// Which kernel runs a problem: a pure function of catalogue, target, measured rates and problem.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device_profile.h"
#include "kernels/kernel.h"

namespace gemmd {

// A kernel that has misbehaved on a device.
struct DistrustedKernel {
  const Kernel* kernel = nullptr;
  absl::Status why;  // The error for a request that only this kernel could serve.
};

// The caller's constraints on the kernel, in addition to the problem.
struct Constraints {
  // Null: any kernel. A kernel of another kind of device represents all kernels with its
  // instruction.
  const Kernel* kernel = nullptr;
  bool deterministic = false;
  bool batch_invariant = false;
  // Kernels that the device must not be given for this problem. Borrowed.
  absl::Span<const DistrustedKernel> distrusted = {};
};

struct Candidate {
  const Kernel* kernel;
  int64_t predicted_ns;
  std::string reason;
};

struct Refusal {
  const Kernel* kernel;
  std::string reason;
};

struct Selection {
  std::vector<Candidate> candidates;  // Best first.
  std::vector<Refusal> refusals;      // All other rows, in the catalogue's order.
  std::string recipe;                 // DescribeRecipe of the first candidate.
};

// Ranks the kernels of `catalog` for a valid problem by predicted time. Among those within 10 % of
// the fastest (2 % on a GPU), the first in the catalogue comes first, and so on for the rest. So
// noise in the measured rates does not change the choice, and the choice is within that margin of
// the fastest. On a GPU or a simulator, unless a kernel is named, every candidate gives the bits of
// the chip's default recipe (default_recipe.h); others are refused.
Selection Select(absl::Span<const Kernel> catalog, const Problem& problem,
                 const Constraints& constraints, const DeviceProfile& profile);

// The first candidate, or null if there is none. Every request calls this: it builds no text and
// asks only rows of the problem's types, which took 6 us for 76 rows.
const Kernel* FindBest(absl::Span<const Kernel> catalog, const Problem& problem,
                       const Constraints& constraints, const DeviceProfile& profile);

// The first candidate among the rows that give the bits of `like`, which runs the problem.
const Kernel& FindBestLike(const Kernel& like, absl::Span<const Kernel> catalog,
                           const Problem& problem, const DeviceProfile& profile);

// The first candidate.
// Errors: Unimplemented if there is none; the message gives the reason for the kernel asked for, or
// the refusals of the nearest ones, and names the candidates that would exist without the
// constraints. If only distrusted kernels serve, the reason for the best of them.
absl::StatusOr<const Kernel*> Choose(absl::Span<const Kernel> catalog, const Problem& problem,
                                     const Constraints& constraints, const DeviceProfile& profile);

// The predicted time of a product on an otherwise idle device.
struct PredictedTime {
  int64_t kernel_ns = 0;
  int64_t copy_ns = 0;  // Its operands and result, to the device and back.

  int64_t total_ns() const { return kernel_ns + copy_ns; }
};

// The kernel's family predicts its part: at the kernel's own rate if the profile has one, else at
// its engine's, else at 1e9 operations per second. A host device reads operands in place and only
// allocates D. Each part is at most 2^57.
PredictedTime Predict(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile);

// Whether predictions for the kernel are based on a measurement: of the kernel itself, or of its
// engine if only engines are measured.
bool HasRate(const Kernel& kernel, const DeviceProfile& profile);

}  // namespace gemmd
