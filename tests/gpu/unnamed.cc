// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/unnamed.h"

#include <cmath>
#include <set>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/select.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/comparison.h"
#include "tests/gpu/reference.h"

namespace gemmd {
namespace {

DeviceProfile DrawProfile(DeviceKind kind, mma::Chip chip, RandomSource& random) {
  DeviceProfile profile;
  profile.target = {.kind = kind, .chip = chip, .multiprocessors = 132};
  profile.memory_bytes_per_second = 4e12;
  for (size_t i = 0; i < Catalog(kind).size(); ++i) {
    profile.kernel_rates.push_back(1e11 * static_cast<double>(random.Between(1, 1000)));
  }
  return profile;
}

// From 1 to `most`; small numbers are as likely as large ones.
int64_t DrawExtent(int64_t most, RandomSource& random) {
  const double bits = std::log2(static_cast<double>(most));
  const double drawn = bits * static_cast<double>(random.Between(0, 1000)) / 1000;
  return static_cast<int64_t>(std::exp2(drawn));
}

CaseSpec DrawSpec(RandomSource& random) {
  CaseSpec spec = {};
  spec.topic = Topic::kEpilogues;
  spec.m = DrawExtent(400, random);
  spec.n = DrawExtent(400, random);
  spec.k = DrawExtent(2000, random);
  spec.family = kAllFamilies[static_cast<size_t>(
      random.Between(0, static_cast<int64_t>(kAllFamilies.size()) - 1))];
  spec.batch = random.Between(0, 3) == 0 ? 2 : 1;
  constexpr ElementType kOutputs[] = {ElementType::kF32, ElementType::kF16, ElementType::kBf16,
                                      ElementType::kS32, ElementType::kE4m3};
  spec.d = kOutputs[random.Between(0, 4)];
  return spec;
}

// Kernels of the chip whose types a request can have.
std::vector<const Kernel*> FindDonors(const KernelRunner& runner, mma::Chip chip) {
  const Target target = {.kind = DeviceKind::kCuda, .chip = chip};
  std::vector<const Kernel*> donors;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    if (kernel.available(target).ok() && runner.HasCode(kernel)) donors.push_back(&kernel);
  }
  return donors;
}

}  // namespace

absl::StatusOr<UnnamedResult> CheckUnnamed(KernelRunner& runner, mma::Chip chip, int64_t count,
                                           uint64_t seed) {
  RandomSource random(seed);
  const std::vector<const Kernel*> donors = FindDonors(runner, chip);
  if (donors.empty()) return absl::NotFoundError("no kernel of this build runs on the GPU");
  UnnamedResult result;
  std::set<const Kernel*> chosen;
  while (result.products < count) {
    const Kernel& donor =
        *donors[static_cast<size_t>(random.Between(0, static_cast<int64_t>(donors.size()) - 1))];
    const CaseSpec spec = DrawSpec(random);
    for (Product& product : MakeProducts(donor, spec, /*is_quick=*/true, random)) {
      Problem& problem = product.problem;
      problem.fast_accumulation = random.Flip();
      if (!Validate(problem).ok() || !donor.supports(problem).ok()) continue;
      const DeviceProfile gpu = DrawProfile(DeviceKind::kCuda, chip, random);
      const DeviceProfile simulator = DrawProfile(DeviceKind::kSim, chip, random);
      ASSIGN_OR_RETURN(const Kernel* const kernel,
                       Choose(Catalog(DeviceKind::kCuda), problem, {}, gpu));
      ASSIGN_OR_RETURN(const Kernel* const simulated,
                       Choose(Catalog(DeviceKind::kSim), problem, {}, simulator));
      if (!runner.HasCode(*kernel)) continue;
      std::vector<std::byte> got = PoisonedOutput(problem);
      std::vector<std::byte> want = got;
      RETURN_IF_ERROR(runner.Run(*kernel, {&product, 1}, {&got, 1}));
      RETURN_IF_ERROR(Simulate(*simulated, chip, product, want));
      const Comparison comparison = Compare(problem, got, want);
      chosen.insert(kernel);
      ++result.products;
      result.elements += comparison.elements;
      result.mismatches += comparison.mismatches;
      if (comparison.first && result.first.empty()) {
        result.first = Concat(Describe(spec, problem), ", ", kernel->name, " and ", simulated->name,
                              ": ", Describe(*comparison.first, problem.d.type));
      }
    }
  }
  result.kernels = static_cast<int64_t>(chosen.size());
  return result;
}

}  // namespace gemmd
