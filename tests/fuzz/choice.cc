// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/choice.h"

#include <array>

#include "gemmd/v1/registry.pb.h"
#include "kernels/kernel.h"
#include "server/wire/registry_service.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

// Invented rates of a device, used for a GPU and for the machine's processor alike.
DeviceProfile ProfileOf(DeviceKind kind) {
  DeviceProfile profile = {.target = {.kind = kind,
                                      .has_avx512_vnni = true,
                                      .has_avx512_core = true,
                                      .chip = mma::Chip::kSm90,
                                      .multiprocessors = 132},
                           .rates = {}};
  profile.memory_bytes_per_second = 4e12;
  profile.copied_bytes_per_second = 5e10;
  return profile;
}

}  // namespace

void CheckChoice(DeviceKind kind, const Problem& problem, const Constraints& constraints,
                 bool is_thorough) {
  static const std::array<DeviceProfile, 3>* const profiles = new std::array<DeviceProfile, 3>(
      {ProfileOf(DeviceKind::kCpu), ProfileOf(DeviceKind::kSim), ProfileOf(DeviceKind::kCuda)});
  const DeviceProfile& profile = (*profiles)[static_cast<size_t>(kind)];
  const absl::Span<const Kernel> catalog = Catalog(kind);
  const Kernel* const best = FindBest(catalog, problem, constraints, profile);
  if (best != nullptr) {
    Demand(best->supports(problem).ok(), "a kernel that does not support the problem was chosen");
    const PredictedTime predicted = Predict(*best, problem, profile);
    Demand(predicted.kernel_ns >= 0, "a time before now was predicted");
    Demand(predicted.copy_ns >= 0, "a copy before now was predicted");
    const absl::StatusOr<int64_t> workspace = best->workspace_bytes(problem);
    Demand(!workspace.ok() || *workspace >= 0, "the workspace has less than no bytes");
  }
  if (!is_thorough) return;
  const Selection selection = Select(catalog, problem, constraints, profile);
  Demand(selection.candidates.size() + selection.refusals.size() == catalog.size(),
         "a kernel is neither a candidate nor refused");
  Demand((best == nullptr) == selection.candidates.empty(), "Select and FindBest disagree");
  Demand(best == nullptr || selection.candidates.front().kernel == best,
         "Select and FindBest choose differently");
  v1::ExplainResponse explanation;
  (void)FillExplanation(problem, selection, explanation);
  Demand(explanation.operations() >= 0 && explanation.bytes_read() >= 0 &&
             explanation.bytes_written() >= 0 && explanation.workspace_bytes() >= 0,
         "an explanation has a number below 0");
}

}  // namespace gemmd::fuzz
