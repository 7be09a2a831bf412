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
  absl::Status why;  // What a request is answered that no other kernel can serve.
};

// What the caller asks of the kernel, in addition to the problem.
struct Constraints {
  // Null: any kernel. A kernel of another kind of device stands for all kernels of the same
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
// the fastest, on a GPU within 2 %, the first in the catalogue comes first, and so on with those
// that remain. So noise in the measured rates does not change the choice, and the choice is within
// that of the fastest.
// On a GPU or a simulator, a kernel that is not asked for by name gives the bits of the chip's
// default recipe (default_recipe.h), whichever it is; any other is refused.
Selection Select(absl::Span<const Kernel> catalog, const Problem& problem,
                 const Constraints& constraints, const DeviceProfile& profile);

// The first candidate, or null if there is none. It is found on the path of every request: it makes
// no text and asks only rows of the problem's types, which took 6 us for 76 rows.
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

// The time that a product should take on a device that does nothing else.
struct PredictedTime {
  int64_t kernel_ns = 0;
  int64_t copy_ns = 0;  // Its operands and result, to the device and back.

  int64_t total_ns() const { return kernel_ns + copy_ns; }
};

// The kernel's part is what its family says: at the kernel's own rate where the profile has one,
// otherwise at its engine's, otherwise at 1e9 operations a second. A device of the host reads
// operands where they lie; only the memory of D is made. Each part is at most 2^57.
PredictedTime Predict(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile);

// Whether predictions for the kernel rest on something measured: the kernel itself, or its engine
// where only engines are measured.
bool HasRate(const Kernel& kernel, const DeviceProfile& profile);

}  // namespace gemmd
