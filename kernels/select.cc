// SPDX-License-Identifier: Apache-2.0
#include "kernels/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/default_recipe.h"
#include "kernels/dequantize.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

constexpr double kUnknownRate = 1e9;
constexpr size_t kMaxNamed = 3;  // Kernels named in one message.

// The relative noise of measured rates. A GPU's clock is steadier than a host's, and its rows of
// one recipe give the same bits, so that it does not matter if another one is chosen after a
// restart.
double NoiseOf(const Kernel& kernel) {
  return kernel.device_kind == DeviceKind::kCuda ? 0.02 : 0.1;
}

// The rate that predictions for a kernel are based on.
struct Rate {
  enum class Of { kKernel, kEngine, kNothing };
  Of of = Of::kNothing;
  double operations_per_second = kUnknownRate;
};

Rate RateOf(const Kernel& kernel, const DeviceProfile& profile) {
  if (kernel.position < profile.kernel_rates.size()) {
    const double rate = profile.kernel_rates[kernel.position];
    if (rate > 0) return {Rate::Of::kKernel, rate};
  }
  for (const EngineRate& rate : profile.rates) {
    if (rate.engine == kernel.engine) return {Rate::Of::kEngine, rate.operations_per_second};
  }
  return {};
}

// Whether a request for `wanted` means this kernel: the kernel itself or, on another kind of
// device, any kernel that computes with the same instruction.
bool IsEquivalent(const Kernel& kernel, const Kernel& wanted) {
  if (kernel.device_kind == wanted.device_kind) return kernel.name == wanted.name;
  return ShareInstruction(kernel, wanted);
}

// The kernel whose bits the caller gets; null if any may be used, as on a device with libraries.
const Kernel* ModelOf(const Problem& problem, const Constraints& constraints,
                      const Target& target) {
  if (constraints.kernel != nullptr || target.kind == DeviceKind::kCpu) return nullptr;
  return DefaultRecipe(target.chip, problem);
}

absl::Status Admits(const Kernel& kernel, const Problem& problem, const Constraints& constraints,
                    const Target& target, const Kernel* model) {
  if (kernel.device_kind != target.kind) {
    return absl::FailedPreconditionError(
        GotWant("device", NameOf(target.kind), NameOf(kernel.device_kind)));
  }
  RETURN_IF_ERROR(kernel.available(target));
  RETURN_IF_ERROR(kernel.supports(problem));
  for (const DistrustedKernel& distrusted : constraints.distrusted) {
    if (distrusted.kernel == &kernel) return distrusted.why;
  }
  if (constraints.kernel != nullptr && !IsEquivalent(kernel, *constraints.kernel)) {
    return absl::UnimplementedError(GotWant("kernel", kernel.name, constraints.kernel->name));
  }
  if (constraints.deterministic && !kernel.deterministic) {
    return absl::UnimplementedError(
        "require_deterministic: got a kernel whose bits may vary, want the same bits every time");
  }
  if (constraints.batch_invariant && !kernel.batch_invariant) {
    return absl::UnimplementedError(
        "require_batch_invariant: got a kernel whose bits may depend on m or the batch, "
        "want bits that depend on neither");
  }
  if (model != nullptr && !GiveSameBits(kernel, *model, target.chip)) {
    return absl::UnimplementedError(
        Concat("recipe: got ", DescribeRecipe(kernel, target.chip), ", want that of ",
               mma::NameOf(target.chip), " for these types: ", DescribeRecipe(*model, target.chip),
               "; ask for the kernel by name to have it"));
  }
  return absl::OkStatus();
}

std::string DescribePrediction(const Kernel& kernel, const DeviceProfile& profile) {
  const Rate rate = RateOf(kernel, profile);
  const std::string measured =
      absl::StrFormat(" measured at %.4g Gop/s", rate.operations_per_second / 1e9);
  // If kernels have rates of their own, one without any is the exception.
  const std::string missing =
      profile.kernel_rates.empty() ? "" : "this kernel was not measured at the start; ";
  switch (rate.of) {
    case Rate::Of::kKernel: return Concat("this kernel", measured);
    case Rate::Of::kEngine: return Concat(missing, kernel.engine, measured);
    case Rate::Of::kNothing: break;
  }
  return Concat(missing, kernel.engine, " has no measured rate, 1 Gop/s assumed");
}

auto FindFastest(std::vector<Candidate>& candidates) {
  return std::min_element(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.predicted_ns < b.predicted_ns; });
}

// The first candidate, in the catalogue's order, that is within the noise of the fastest.
std::vector<Candidate>::iterator FindPreferred(std::vector<Candidate>& candidates) {
  if (candidates.empty()) return candidates.end();
  const auto fastest = FindFastest(candidates);
  const double limit = static_cast<double>(fastest->predicted_ns) / (1 - NoiseOf(*fastest->kernel));
  return std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
    return static_cast<double>(candidate.predicted_ns) <= limit;
  });
}

// Moves the candidates, given in the catalogue's order, into the order of preference.
std::vector<Candidate> Rank(std::vector<Candidate> left) {
  std::vector<Candidate> ranked;
  while (!left.empty()) {
    const auto fastest = FindFastest(left);
    const auto next = FindPreferred(left);
    if (next != fastest) {
      const int percent = static_cast<int>(100 * NoiseOf(*fastest->kernel));
      AppendPart(next->reason, Concat("; within ", percent, " % of ", fastest->kernel->name,
                                      " and before it in the catalogue"));
    }
    ranked.push_back(std::move(*next));
    left.erase(next);
  }
  return ranked;
}

std::string NameSome(const std::vector<Candidate>& candidates) {
  std::string text;
  for (size_t i = 0; i < std::min(kMaxNamed, candidates.size()); ++i) {
    AppendPart(text, Concat(i == 0 ? "" : ", ", candidates[i].kernel->name));
  }
  return text;
}

// Whether the kernel multiplies the operands as they are, or once they are dequantized.
bool IsOfTypes(const Kernel& kernel, const Problem& problem,
               std::optional<ElementType> dequantized) {
  return (kernel.a == problem.a.type && kernel.b == problem.b.type) ||
         (dequantized == kernel.a && dequantized == kernel.b);
}

// How close a kernel is to a problem that it refuses.
int Nearness(const Kernel& kernel, const Problem& problem) {
  const int of_dequantized = Dequantizes(kernel, problem) ? 4 : 0;
  return std::max(of_dequantized,
                  (kernel.a == problem.a.type ? 2 : 0) + (kernel.b == problem.b.type ? 2 : 0)) +
         (kernel.recipe.accumulation == problem.accumulation ? 1 : 0);
}

std::string ExplainNearest(const std::vector<Refusal>& refusals, const Problem& problem) {
  std::vector<const Refusal*> nearest;
  nearest.reserve(refusals.size());
  for (const Refusal& refusal : refusals) nearest.push_back(&refusal);
  std::stable_sort(nearest.begin(), nearest.end(), [&](const Refusal* a, const Refusal* b) {
    return Nearness(*a->kernel, problem) > Nearness(*b->kernel, problem);
  });
  std::string text;
  for (size_t i = 0; i < std::min(kMaxNamed, nearest.size()); ++i) {
    AppendPart(text, Concat("; ", nearest[i]->kernel->name, ": ", nearest[i]->reason));
  }
  return text;
}

// Why the requested kernel is not a candidate: its own refusal, or that of the first equivalent
// kernel.
std::string ExplainWanted(const Kernel& wanted, const Problem& problem, const Target& target,
                          const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    if (!IsEquivalent(*refusal.kernel, wanted)) continue;
    return Concat(refusal.kernel->name, ": ", refusal.reason);
  }
  return Concat(wanted.name, ": ",
                std::string(Admits(wanted, problem, {}, target, nullptr).message()));
}

int64_t ToNanoseconds(double seconds) {
  // About 4.5 years. The sum of a few such times does not overflow.
  constexpr double kLongest = 0x1p57;
  const double ns = std::max(std::ceil(seconds * 1e9), 0.0);
  return ns < kLongest ? static_cast<int64_t>(ns) : static_cast<int64_t>(kLongest);
}

int64_t PredictedNs(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile) {
  return ToNanoseconds(
      kernel.predicted_seconds(problem, profile, RateOf(kernel, profile).operations_per_second));
}

int64_t PredictedCopyNs(const Problem& problem, const DeviceProfile& profile) {
  if (profile.host != nullptr && profile.host->cleared_bytes_per_second > 0) {
    return ToNanoseconds(static_cast<double>(BytesWritten(problem)) /
                         profile.host->cleared_bytes_per_second);
  }
  if (profile.copied_bytes_per_second <= 0) return 0;
  const double bytes =
      static_cast<double>(BytesRead(problem)) + static_cast<double>(BytesWritten(problem));
  return ToNanoseconds(bytes / profile.copied_bytes_per_second);
}

}  // namespace

bool HasRate(const Kernel& kernel, const DeviceProfile& profile) {
  const Rate::Of of = RateOf(kernel, profile).of;
  return of == Rate::Of::kKernel || (of == Rate::Of::kEngine && profile.kernel_rates.empty());
}

PredictedTime Predict(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile) {
  return {.kernel_ns = PredictedNs(kernel, problem, profile),
          .copy_ns = PredictedCopyNs(problem, profile)};
}

Selection Select(absl::Span<const Kernel> catalog, const Problem& problem,
                 const Constraints& constraints, const DeviceProfile& profile) {
  Selection selection;
  const Kernel* const model = ModelOf(problem, constraints, profile.target);
  for (const Kernel& kernel : catalog) {
    const absl::Status status = Admits(kernel, problem, constraints, profile.target, model);
    if (status.ok()) {
      selection.candidates.push_back(
          {&kernel, PredictedNs(kernel, problem, profile), DescribePrediction(kernel, profile)});
    } else {
      selection.refusals.push_back({&kernel, std::string(status.message())});
    }
  }
  selection.candidates = Rank(std::move(selection.candidates));
  if (!selection.candidates.empty()) {
    const Kernel& best = *selection.candidates.front().kernel;
    selection.recipe =
        Concat(Dequantizes(best, problem)
                   ? Concat("operands of at most 8 bits dequantized to ", NameOf(best.a), ": ")
                   : "",
               DescribeRecipe(best, profile.target.chip));
  }
  return selection;
}

const Kernel* FindBest(absl::Span<const Kernel> catalog, const Problem& problem,
                       const Constraints& constraints, const DeviceProfile& profile) {
  std::vector<Candidate> candidates;
  const Target& target = profile.target;
  const Kernel* const model = ModelOf(problem, constraints, target);
  const std::optional<ElementType> dequantized = DequantizedType(problem);
  for (const Kernel& kernel : catalog) {
    if (!IsOfTypes(kernel, problem, dequantized)) continue;
    if (constraints.kernel != nullptr && !IsEquivalent(kernel, *constraints.kernel)) continue;
    if (model != nullptr && !GiveSameBits(kernel, *model, target.chip)) continue;
    if (!Admits(kernel, problem, constraints, target, nullptr).ok()) continue;
    candidates.push_back({&kernel, PredictedNs(kernel, problem, profile), ""});
  }
  const auto best = FindPreferred(candidates);
  return best == candidates.end() ? nullptr : best->kernel;
}

const Kernel& FindBestLike(const Kernel& like, absl::Span<const Kernel> catalog,
                           const Problem& problem, const DeviceProfile& profile) {
  std::vector<Candidate> candidates;
  for (const Kernel& kernel : catalog) {
    if (kernel.a != like.a || kernel.b != like.b) continue;
    if (!GiveSameBits(kernel, like, profile.target.chip)) continue;
    if (!Admits(kernel, problem, {}, profile.target, nullptr).ok()) continue;
    candidates.push_back({&kernel, PredictedNs(kernel, problem, profile), ""});
  }
  const auto best = FindPreferred(candidates);
  return best == candidates.end() ? like : *best->kernel;
}

absl::StatusOr<const Kernel*> Choose(absl::Span<const Kernel> catalog, const Problem& problem,
                                     const Constraints& constraints, const DeviceProfile& profile) {
  const Kernel* best = FindBest(catalog, problem, constraints, profile);
  if (best != nullptr) return best;

  const Selection selection = Select(catalog, problem, constraints, profile);
  std::string message;
  absl::StatusCode code = absl::StatusCode::kUnimplemented;
  Constraints trusting = constraints;
  trusting.distrusted = {};
  if (const Kernel* barred = FindBest(catalog, problem, trusting, profile); barred != nullptr) {
    const absl::Status why = Admits(*barred, problem, constraints, profile.target, nullptr);
    code = why.code();
    message = Concat(barred->name, ": ", std::string(why.message()));
  } else if (constraints.kernel != nullptr) {
    message = ExplainWanted(*constraints.kernel, problem, profile.target, selection.refusals);
  } else {
    message =
        Concat("no kernel runs ", Describe(problem), ExplainNearest(selection.refusals, problem));
  }
  const Selection free =
      Select(catalog, problem, Constraints{.distrusted = constraints.distrusted}, profile);
  if (!free.candidates.empty()) {
    AppendPart(message, Concat("; without the constraints: ", NameSome(free.candidates)));
  }
  return absl::Status(code, message);
}

}  // namespace gemmd
