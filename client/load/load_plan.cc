// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_plan.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/terminal/text_file.h"
#include "client/terminal/time_text.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Seconds, or a time such as 500ms; not above a week.
absl::StatusOr<int64_t> TimeOfFlag(absl::string_view flag, const std::string& text,
                                   absl::Duration least) {
  const absl::Duration time = ParseTime(text).value_or(absl::InfiniteDuration());
  if (time >= least && time <= absl::Hours(24 * 7)) return absl::ToInt64Nanoseconds(time);
  return absl::InvalidArgumentError(absl::StrCat(flag, ": got \"", text, "\", want ",
                                                 absl::FormatDuration(least),
                                                 " to a week: seconds, or a time such as 500ms"));
}

absl::StatusOr<LoadStep> StepWithoutLoop(const LoadFlags& flags) {
  LoadStep step;
  const auto warmup = TimeOfFlag("--warmup", flags.warmup, absl::ZeroDuration());
  if (!warmup.ok()) return warmup.status();
  const bool is_endless = flags.duration.empty() && flags.count > 0;
  const std::string duration = is_endless               ? "168h"
                               : flags.duration.empty() ? "10s"
                                                        : flags.duration;
  const auto length = TimeOfFlag("--duration", duration, absl::Milliseconds(1));
  if (!length.ok()) return length.status();
  const auto timeout = TimeOfFlag("--timeout", flags.timeout, absl::Milliseconds(1));
  if (!timeout.ok()) return timeout.status();
  const auto interval = TimeOfFlag("--interval", flags.interval, absl::Milliseconds(10));
  if (!interval.ok()) return interval.status();
  step.warmup_ns = *warmup;
  step.duration_ns = *length;
  step.count = flags.count;
  step.timeout = absl::Nanoseconds(*timeout);
  step.interval_ns = *interval;
  return step;
}

absl::StatusOr<NamedStep> ReplayStep(const LoadFlags& flags, LoadStep step) {
  const auto text = ReadTextFile(flags.replay_path);
  if (!text.ok()) return text.status();
  auto gaps = ParseGaps(*text);
  if (!gaps.ok()) return InFile(flags.replay_path, gaps.status());
  step.loop = OpenLoop{.arrivals = {.seed = flags.seed, .replay_gaps_ns = *std::move(gaps)},
                       .most_in_flight = flags.most_in_flight};
  return NamedStep{absl::StrCat("replay of ", flags.replay_path), 0, std::move(step)};
}

NamedStep OpenStep(const LoadFlags& flags, LoadStep step, double rate) {
  ArrivalPlan arrivals = {.rate = {.from = rate, .to = rate},
                          .is_poisson = flags.arrivals == "poisson",
                          .seed = flags.seed};
  std::string name = absl::StrFormat("%g/s", rate);
  if (flags.ramp_to > 0) {
    arrivals.rate.to = flags.ramp_to;
    arrivals.rate.ramp_ns = step.warmup_ns + step.duration_ns;
    absl::StrAppendFormat(&name, " to %g/s", flags.ramp_to);
  }
  step.loop = OpenLoop{.arrivals = std::move(arrivals), .most_in_flight = flags.most_in_flight};
  return {std::move(name), rate, std::move(step)};
}

}  // namespace

absl::StatusOr<Mix> MixOf(const LoadFlags& flags) {
  absl::StatusOr<Mix> mix = Mix();
  const bool has_files = !flags.a_path.empty() || !flags.b_path.empty();
  if (!flags.shape.empty() || has_files) {
    LoadProduct product;
    if (!flags.shape.empty()) {
      product.m = flags.shape[0];
      product.n = flags.shape[1];
      product.k = flags.shape[2];
    }
    // What is open, a file tells.
    product.batch = flags.shape.empty() ? 0 : flags.batch;
    product.type = ParseElementType(flags.type)
                       .value_or(has_files ? v1::ELEMENT_TYPE_UNSPECIFIED : v1::ELEMENT_TYPE_F32);
    product.a_path = flags.a_path;
    product.b_path = flags.b_path;
    product.output_type =
        ParseElementType(flags.output_type).value_or(v1::ELEMENT_TYPE_UNSPECIFIED);
    product.fast_accumulation = flags.fast_accumulation;
    product.is_sparse = flags.sparse;
    if (flags.b_order == "column") product.b_order = v1::ORDER_COLUMN_MAJOR;
    if (!has_files) product.name = NameOf(product);
    mix->push_back(product);
  } else if (!flags.mix_path.empty()) {
    const auto text = ReadTextFile(flags.mix_path);
    if (!text.ok()) return text.status();
    mix = ParseMix(*text);
    if (!mix.ok()) return InFile(flags.mix_path, mix.status());
  } else {
    mix = FindProfile(flags.profile.empty() ? "small" : flags.profile);
    if (!mix.ok()) return mix.status();
  }
  for (LoadProduct& product : *mix) {
    if (product.kernel.empty()) product.kernel = flags.kernel;
    if (product.device.empty()) product.device = flags.device;
  }
  MakeNamesUnique(*mix);
  return mix;
}

absl::StatusOr<std::vector<NamedStep>> StepsOf(const LoadFlags& flags) {
  const auto step = StepWithoutLoop(flags);
  if (!step.ok()) return step.status();
  std::vector<NamedStep> steps;
  if (!flags.replay_path.empty()) {
    auto replay = ReplayStep(flags, *step);
    if (!replay.ok()) return replay.status();
    steps.push_back(*std::move(replay));
  } else if (!flags.slo.empty()) {
    if (flags.rates.size() > 1 || flags.ramp_to > 0 || flags.count > 0) {
      return absl::InvalidArgumentError(
          "--slo: got several rates, --ramp-to or --count, want at most one rate to begin with");
    }
    steps.push_back(OpenStep(flags, *step, flags.rates.empty() ? 100 : flags.rates[0]));
  } else if (!flags.rates.empty()) {
    if (flags.ramp_to > 0 && flags.count > 0 && flags.duration.empty()) {
      return absl::InvalidArgumentError("--ramp-to: got no --duration, want that of the ramp");
    }
    for (const double rate : flags.rates) steps.push_back(OpenStep(flags, *step, rate));
  } else {
    const std::vector<int> one = {1};
    for (const int calls : flags.concurrency.empty() ? one : flags.concurrency) {
      NamedStep closed = {absl::StrCat(calls, " in flight"), static_cast<double>(calls), *step};
      closed.step.loop = ClosedLoop{.concurrency = calls};
      steps.push_back(std::move(closed));
    }
  }
  return steps;
}

absl::StatusOr<SessionPlan> PlanSession(const LoadFlags& flags) {
  SessionPlan plan;
  auto mix = MixOf(flags);
  if (!mix.ok()) return mix.status();
  plan.mix = *std::move(mix);
  for (LoadProduct& product : plan.mix) {
    auto given = ReadOperands(product);
    if (!given.ok()) return given.status();
    plan.given.push_back(*std::move(given));
    if (product.name.empty()) product.name = NameOf(product);
  }
  auto steps = StepsOf(flags);
  if (!steps.ok()) return steps.status();
  plan.steps = *std::move(steps);
  if (flags.slo.empty()) return plan;
  auto objective = ParseSlo(flags.slo);
  if (!objective.ok()) return objective.status();
  plan.objective = *std::move(objective);
  return plan;
}

}  // namespace gemmd
