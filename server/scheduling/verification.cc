// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/verification.h"

#include <charconv>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "kernels/verify/checksum.h"
#include "kernels/verify/recompute.h"

namespace gemmd {
namespace {

// A thread does some 2e9 multiplications a second by the simulator, and a tenth of that by other
// ways (kernels/README.md): so a check is over within a minute at the very most.
constexpr double kMostMultiplications = 1e10;

}  // namespace

std::string_view NameOf(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kNone: return "none";
    case VerifyMode::kSampled: return "sampled";
    case VerifyMode::kChecksum: return "checksum";
    case VerifyMode::kDuplicate: return "duplicate";
  }
  return "";
}

std::string_view NameOf(VerifyEnd end) {
  switch (end) {
    case VerifyEnd::kPassed: return "passed";
    case VerifyEnd::kFailed: return "failed";
    case VerifyEnd::kNotVerified: return "not_verified";
  }
  return "";
}

absl::StatusOr<VerifyRule> ParseVerifyRule(std::string_view field, std::string_view text) {
  const absl::Status refusal = absl::InvalidArgumentError(
      GotWant(field, Shown(text),
              "none, sampled, sampled:RATE with a rate above 0 and at most 1, checksum or "
              "duplicate"));
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const VerifyMode mode :
       {VerifyMode::kNone, VerifyMode::kSampled, VerifyMode::kChecksum, VerifyMode::kDuplicate}) {
    if (NameOf(mode) != name) continue;
    VerifyRule rule = {.mode = mode};
    if (colon == std::string_view::npos) return rule;
    if (mode != VerifyMode::kSampled) return refusal;
    const std::string_view number = text.substr(colon + 1);
    const char* const end = number.data() + number.size();
    const auto parsed = std::from_chars(number.data(), end, rule.rate);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == end;
    if (!is_number || !(rule.rate > 0 && rule.rate <= 1)) return refusal;
    return rule;
  }
  return refusal;
}

absl::StatusOr<VerifyNeeds> NeedsOf(const VerifyRule& rule, const Kernel& kernel,
                                    const Problem& problem) {
  VerifyNeeds needs;
  if (rule.mode == VerifyMode::kNone || !problem.has_output()) return needs;
  if (rule.mode == VerifyMode::kDuplicate) {
    if (!kernel.deterministic) {
      return absl::UnimplementedError(
          Concat("verify.mode: got DUPLICATE with ", kernel.name,
                 ", want a kernel that gives the same bits every time"));
    }
    needs.bytes = BytesWritten(problem);
    return needs;
  }
  const bool is_sampled = rule.mode == VerifyMode::kSampled;
  double cost = 0;
  if (is_sampled) {
    RETURN_IF_ERROR(verify::CanRecompute(kernel));
    const verify::SamplePlan plan = verify::PlanSample(problem, rule.rate);
    needs.bytes = plan.bytes;
    cost = plan.cost;
  } else {
    RETURN_IF_ERROR(verify::CanCheckSums(kernel, problem));
    needs.bytes = verify::SumBytes(problem);
    cost = verify::SumCost(problem);
  }
  // The operands in one piece each.
  needs.bytes += BytesRead(problem);
  const double multiplications = cost * static_cast<double>(problem.m) *
                                 static_cast<double>(problem.n) * static_cast<double>(problem.k) *
                                 static_cast<double>(problem.batch);
  if (multiplications <= kMostMultiplications) return needs;
  return absl::ResourceExhaustedError(
      Concat("verify: got a check of ", static_cast<int64_t>(multiplications),
             " multiplications, at most ", static_cast<int64_t>(kMostMultiplications),
             " are done for one product; want a lower rate"));
}

}  // namespace gemmd
