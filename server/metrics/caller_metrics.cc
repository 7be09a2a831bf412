// SPDX-License-Identifier: Apache-2.0
//
// The metrics of callers, by the rule that each is known by (--rules): callers that a pattern
// stands for are as many as they like, rules are not.
#include "server/metrics/metric.h"

namespace gemmd {
namespace {

void CollectProducts(const Snapshot& now, Samples& samples) {
  for (const RuleUse::Totals& caller : now.callers) {
    samples.Add({caller.rule, "answered"}, caller.answered);
    samples.Add({caller.rule, "failed"}, caller.failed);
    samples.Add({caller.rule, "refused"}, caller.refused);
  }
}

void CollectCompute(const Snapshot& now, Samples& samples) {
  for (const RuleUse::Totals& caller : now.callers) {
    samples.Add({caller.rule}, static_cast<double>(caller.compute_ns) * 1e-9);
  }
}

void CollectTensors(const Snapshot& now, Samples& samples) {
  for (const RuleUse::Totals& caller : now.callers) {
    const auto found = now.tensors.bytes_of_rules.find(caller.rule);
    samples.Add({caller.rule},
                found == now.tensors.bytes_of_rules.end() ? int64_t{0} : found->second);
  }
}

constexpr Metric kCallerMetrics[] = {
    {.name = "gemmd_caller_products_total",
     .type = MetricType::kCounter,
     .labels = {"rule", "outcome"},
     .help =
         "Products of the callers of a rule (--rules): answered, failed after admission, or "
         "refused; a rule that had no caller has no series, and rules beyond the first 48 share "
         "one",
     .collect = CollectProducts},
    {.name = "gemmd_caller_compute_seconds_total",
     .type = MetricType::kCounter,
     .labels = {"rule"},
     .unit = "seconds",
     .help = "Time for which devices computed answered products of the callers of a rule (--rules)",
     .collect = CollectCompute},
    {.name = "gemmd_caller_tensor_bytes",
     .labels = {"rule"},
     .unit = "bytes",
     .help = "Bytes of resident tensors and of uploads that the callers of a rule own (--rules)",
     .collect = CollectTensors},
};

}  // namespace

absl::Span<const Metric> CallerMetrics() { return kCallerMetrics; }

}  // namespace gemmd
