// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/sampled.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/matrix/status.h"
#include "kernels/verify/recompute.h"

namespace gemmd::verify {
namespace {

constexpr int64_t kStripe = 128;

// How many of a stripe's `lines` are drawn to cover `share` of them. At least one, and never less
// than the share, except for rounding of the square root.
int64_t DrawnOf(int64_t lines, double share) {
  const double wanted = std::ceil(static_cast<double>(lines) * share - 1e-9);
  return std::clamp(static_cast<int64_t>(wanted), int64_t{1}, lines);
}

struct Lines {
  int64_t drawn = 0;
  double min_share = 1;  // The min probability that a line is drawn.
};

Lines PlanLines(int64_t extent, double share) {
  Lines lines;
  for (int64_t first = 0; first < extent; first += kStripe) {
    const int64_t count = std::min(kStripe, extent - first);
    const int64_t drawn = DrawnOf(count, share);
    lines.drawn += drawn;
    lines.min_share =
        std::min(lines.min_share, static_cast<double>(drawn) / static_cast<double>(count));
  }
  return lines;
}

// Ascending.
std::vector<int64_t> DrawLines(int64_t extent, double share, Draw& draw) {
  std::vector<int64_t> lines;
  std::vector<int64_t> stripe;
  for (int64_t first = 0; first < extent; first += kStripe) {
    const int64_t count = std::min(kStripe, extent - first);
    stripe.resize(static_cast<size_t>(count));
    std::iota(stripe.begin(), stripe.end(), first);
    std::sample(stripe.begin(), stripe.end(), std::back_inserter(lines), DrawnOf(count, share),
                draw);
  }
  return lines;
}

}  // namespace

SampledLines DrawSample(const Problem& problem, double rate, Draw& draw) {
  const double share = std::sqrt(rate);
  SampledLines lines;
  lines.rows = DrawLines(problem.m, share, draw);
  lines.columns = DrawLines(problem.n, share, draw);
  return lines;
}

namespace {

class SampleCheck : public SlicedCheck {
 public:
  SampleCheck(const CheckedProduct& product, double rate, Draw& draw, const SampledLines& drawn)
      : product_(product), rate_(rate), draw_(draw), drawn_(drawn) {
    const SamplePlan plan = PlanSample(product.problem, rate);
    result_.cost = plan.cost;
    result_.miss_probability = plan.miss_probability;
  }

  absl::StatusOr<bool> Continue() override {
    const Problem& problem = product_.problem;
    if (!problem.has_output()) return true;
    int64_t left = Recomputation::SliceOf(product_.kernel);
    for (; batch_ < problem.batch; ++batch_) {
      if (!matrix_) {
        SampledLines lines = drawn_.rows.empty() ? DrawSample(problem, rate_, draw_) : drawn_;
        matrix_.emplace(product_, batch_, std::move(lines.rows), std::move(lines.columns));
      }
      ASSIGN_OR_RETURN(const bool has_ended, matrix_->Continue(left, result_));
      if (!has_ended) return false;
      matrix_.reset();
    }
    const bool is_all_skipped = result_.elements_checked == 0;
    if (result_.end == CheckEnd::kPassed && is_all_skipped) {
      result_.end = CheckEnd::kNotVerified;
      result_.reason = "nonfinite";
      result_.miss_probability = 1;
    }
    return true;
  }

 private:
  const CheckedProduct product_;
  const double rate_;
  Draw& draw_;
  const SampledLines drawn_;
  int64_t batch_ = 0;
  std::optional<Recomputation> matrix_;
};

}  // namespace

SamplePlan PlanSample(const Problem& problem, double rate) {
  SamplePlan plan;
  if (!problem.has_output()) return {.miss_probability = 0};
  const double share = std::sqrt(rate);
  const Lines rows = PlanLines(problem.m, share);
  const Lines columns = PlanLines(problem.n, share);
  plan.rows = rows.drawn;
  plan.columns = columns.drawn;
  plan.miss_probability = 1 - rows.min_share * columns.min_share;
  plan.cost = static_cast<double>(rows.drawn) / static_cast<double>(problem.m) *
              static_cast<double>(columns.drawn) / static_cast<double>(problem.n);
  plan.bytes = RecomputeBytes(problem, rows.drawn, columns.drawn);
  return plan;
}

std::unique_ptr<SlicedCheck> StartSample(const CheckedProduct& product, double rate, Draw& draw,
                                         const SampledLines& drawn) {
  return std::make_unique<SampleCheck>(product, rate, draw, drawn);
}

absl::StatusOr<CheckResult> CheckSample(const CheckedProduct& product, double rate, Draw& draw) {
  return Complete(StartSample(product, rate, draw));
}

}  // namespace gemmd::verify
