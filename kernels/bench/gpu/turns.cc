// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/turns.h"

#include <algorithm>
#include <cmath>

#include "kernels/matrix/status.h"

namespace gemmd::bench {
namespace {

constexpr double kShortestTurn = 1e-7;  // The assumed min time of a loop.
constexpr double kMaxTimesInTurn = 1e5;

// Chooses how often the loop runs in a sample.
absl::Status ChooseTimes(Contender& contender, double sample_seconds) {
  RETURN_IF_ERROR(contender.loop->Run(1).status());  // Triggers lazy loading.
  ASSIGN_OR_RETURN(const double seconds, contender.loop->Run(1));
  const double times = std::ceil(sample_seconds / std::max(seconds, kShortestTurn));
  contender.times = static_cast<int>(std::clamp(times, 1.0, kMaxTimesInTurn));
  return absl::OkStatus();
}

bool HaveSettled(const std::vector<double>& samples, double tolerance) {
  constexpr int kLatest = 3;
  if (samples.size() < kLatest) return false;
  const auto [min, max] = std::minmax_element(samples.end() - kLatest, samples.end());
  return *max <= (1 + tolerance) * *min;
}

absl::Status WarmUp(const Contender& contender, const TurnSettings& settings) {
  std::vector<double> samples;
  double total = 0;
  while (total < settings.warm_up ||
         (total < settings.longest_warm_up && !HaveSettled(samples, settings.settled))) {
    ASSIGN_OR_RETURN(const double seconds, contender.loop->Run(contender.times));
    samples.push_back(seconds);
    total += std::max(seconds, kShortestTurn);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeTurns(absl::Span<Contender> contenders, const TurnSettings& settings) {
  for (Contender& contender : contenders) {
    RETURN_IF_ERROR(ChooseTimes(contender, settings.sample));
  }
  RETURN_IF_ERROR(WarmUp(contenders.front(), settings));
  double total = 0;
  for (int turn = 0; turn < settings.min_samples || total < settings.seconds; ++turn) {
    for (Contender& contender : contenders) {
      ASSIGN_OR_RETURN(const double seconds, contender.loop->Run(contender.times));
      contender.seconds.push_back(seconds / contender.times / contender.loop->calls());
      contender.clocks.push_back(contender.loop->sm_clock_mhz());
      total += std::max(seconds, kShortestTurn);
    }
  }
  return absl::OkStatus();
}

}  // namespace gemmd::bench
