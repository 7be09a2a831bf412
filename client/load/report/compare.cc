// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/mix.h"
#include "client/terminal/text.h"
#include "nlohmann/json.hpp"

namespace gemmd {
namespace {

using Align = TextTable::Align;

using Json = nlohmann::json;

constexpr double kConfidence = 1.96;  // Standard errors of 95 %.
constexpr double kTail = 0.025;       // Probability outside the interval, at either end.
constexpr size_t kMinIntervals = 3;
// Up to this standard deviation, ranks are computed exactly; above it, the normal approximation is
// good.
constexpr double kMaxExact = 30;

// Reads a count of calls, limited to what a session can make so that sums do not overflow.
int64_t ReadCount(const Json& json) {
  constexpr int64_t kMax = int64_t{1} << 40;
  return std::clamp<int64_t>(json.get<int64_t>(), 0, kMax);
}

Histogram ReadHistogram(const Json& json) {
  std::vector<Histogram::Bucket> buckets;
  for (const Json& bucket : json.at("buckets")) {
    buckets.push_back({bucket.at(0).get<int64_t>(), ReadCount(bucket.at(1))});
  }
  const double sum = json.at("mean_ns").get<double>() * json.at("count").get<double>();
  return Histogram::FromBuckets(buckets, json.at("least_ns").get<int64_t>(),
                                json.at("most_ns").get<int64_t>(), sum);
}

ComparedStep ReadStep(const Json& json) {
  ComparedStep step;
  step.name = json.at("name").get<std::string>();
  step.rate = json.at("rate_per_s").get<double>();
  step.unsent = ReadCount(json.at("unsent"));
  step.wrong = ReadCount(json.at("verification").at("wrong"));
  step.failed = ReadCount(json.at("calls"));
  if (const Json& codes = json.at("calls_by_status"); codes.contains("OK")) {
    step.failed -= ReadCount(codes.at("OK"));
  }
  step.latency = ReadHistogram(json.at("latency"));
  step.service = ReadHistogram(json.at("service"));
  const double window_s = json.at("window_s").get<double>();
  double longest_s = 0;
  for (const Json& interval : json.at("intervals")) {
    longest_s = std::max(longest_s,
                         interval.at("to_s").get<double>() - interval.at("from_s").get<double>());
  }
  for (const Json& interval : json.at("intervals")) {
    const double to_s = interval.at("to_s").get<double>();
    const double length_s = to_s - interval.at("from_s").get<double>();
    const double ok = interval.at("ok").get<double>();
    // The last interval may be truncated, or contain only calls that were waited for.
    if (length_s < 0.9 * longest_s || to_s > window_s + 1e-6) continue;
    step.rates.push_back(ok / length_s);
    if (ok == 0) continue;
    step.p50_ns.push_back(interval.at("p50_ns").get<double>());
    step.p99_ns.push_back(interval.at("p99_ns").get<double>());
  }
  return step;
}

// Half the width of the confidence interval of the values' mean; nullopt if there are too few
// values.
double Scatter(const std::vector<double>& values) {
  if (values.size() < kMinIntervals) return 0;
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return kConfidence * std::sqrt(squares / (n - 1) / n);
}

std::string TimeText(double ns) { return FormatNanoseconds(static_cast<int64_t>(ns)); }
std::string RateText(double rate) { return absl::StrFormat("%.1f/s", rate); }

// "1.20 ms to 1.31 ms"; "?" for an unknown end.
std::string IntervalText(const Estimate& estimate,
                         const std::function<std::string(double)>& format) {
  const auto end = [&](double value) { return std::isinf(value) ? "?" : format(value); };
  return absl::StrCat(end(estimate.low), " to ", end(estimate.high));
}

void AddRow(TextTable& table, const std::string& name, const Estimate& a, const Estimate& b,
            const std::function<std::string(double)>& format) {
  const double difference = b.value - a.value;
  const bool is_known =
      std::isfinite(a.value) && std::isfinite(b.value) && !a.HasNan() && !b.HasNan();
  const bool is_closed = std::isfinite(a.low) && std::isfinite(a.high) && std::isfinite(b.low) &&
                         std::isfinite(b.high);
  const std::string verdict = !is_known        ? "not a number"
                              : !a.Overlaps(b) ? (difference > 0 ? "higher" : "lower")
                              : is_closed      ? "within noise"
                                               : "too few calls to tell";
  table.AddRow(
      {name, format(a.value), IntervalText(a, format), format(b.value), IntervalText(b, format),
       a.value > 0 ? absl::StrFormat("%+.1f %%", 100 * difference / a.value) : "", verdict});
}

// Counts have no noise: shows any difference.
void AddCount(TextTable& table, const std::string& name, int64_t a, int64_t b) {
  if (a == 0 && b == 0) return;
  table.AddRow({name, FormatCount(a), "", FormatCount(b), "", "",
                a == b  ? "the same"
                : b > a ? "higher"
                        : "lower"});
}

std::string StepTable(const ComparedStep& a, const ComparedStep& b) {
  TextTable table({{a.name == b.name ? a.name : absl::StrCat(a.name, " | ", b.name)},
                   {"a", Align::kRight},
                   {"interval of a", Align::kRight},
                   {"b", Align::kRight},
                   {"interval of b", Align::kRight},
                   {"b - a", Align::kRight},
                   {""}});
  AddRow(table, "rate", EstimateMean(a.rate, a.rates), EstimateMean(b.rate, b.rates), RateText);
  const auto add = [&](const std::string& name, double fraction, bool is_service) {
    const auto estimate = [&](const ComparedStep& step) {
      const std::vector<double> none;
      const bool has_series = !is_service && (fraction == 0.5 || fraction == 0.99);
      const std::vector<double>& series = fraction == 0.5 ? step.p50_ns : step.p99_ns;
      return EstimatePercentile(is_service ? step.service : step.latency, fraction,
                                has_series ? series : none);
    };
    AddRow(table, name, estimate(a), estimate(b), TimeText);
  };
  add("latency p50", 0.5, false);
  add("latency p90", 0.9, false);
  add("latency p99", 0.99, false);
  add("latency p99.9", 0.999, false);
  add("service p50", 0.5, true);
  add("service p99", 0.99, true);
  AddCount(table, "failed calls", a.failed, b.failed);
  AddCount(table, "unsent calls", a.unsent, b.unsent);
  AddCount(table, "wrong answers", a.wrong, b.wrong);
  return table.Print();
}

// All settings of a load, as text.
std::vector<std::pair<std::string, std::string>> ReadSettings(const Json& json) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const char* key : {"gemmload", "servers", "channels", "same_machine", "mix", "operands",
                          "arrivals", "warmup_s", "interrupted"}) {
    const Json& value = json.at(key);
    settings.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return settings;
}

std::string DifferingSettings(const ComparedReport& a, const ComparedReport& b) {
  TextTable table({{"differs"}, {"a"}, {"b"}});
  bool is_any = false;
  for (size_t i = 0; i < std::min(a.settings.size(), b.settings.size()); ++i) {
    if (a.settings[i] == b.settings[i]) continue;
    is_any = true;
    table.AddRow({a.settings[i].first, a.settings[i].second, b.settings[i].second});
  }
  return is_any ? absl::StrCat(table.Print(), "\n") : "";
}

std::string Unmatched(const ComparedReport& report, const std::vector<bool>& is_matched,
                      absl::string_view which) {
  std::string text;
  for (size_t i = 0; i < report.steps.size(); ++i) {
    if (!is_matched[i]) absl::StrAppend(&text, "only in ", which, ": ", report.steps[i].name, "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<ComparedReport> ParseReport(absl::string_view text) {
  if (!Json::accept(text.begin(), text.end())) {
    return absl::InvalidArgumentError("got no JSON, want a report of gemmload --json");
  }
  const absl::StatusOr<Json> parsed = ParseStrictJson(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("want a report of gemmload --json: ", parsed.status().message()));
  }
  const Json& json = *parsed;
  ComparedReport report;
  // The library throws if a member is missing or has another type.
  try {
    for (const Json& step : json.at("steps")) report.steps.push_back(ReadStep(step));
    report.settings = ReadSettings(json);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("want a report of gemmload --json: ", error.what()));
  }
  if (report.steps.empty()) {
    return absl::InvalidArgumentError("want a report with at least one step");
  }
  return report;
}

RankInterval RanksAround(int64_t count, double fraction) {
  // The number of values below the percentile is binomial: B(count, fraction).
  const double n = static_cast<double>(count);
  const double deviation = std::sqrt(n * fraction * (1 - fraction));
  if (deviation > kMaxExact) {
    const double spread = kConfidence * deviation;
    return {static_cast<int64_t>(std::floor(n * fraction - spread)),
            static_cast<int64_t>(std::ceil(n * fraction + spread)) + 1};
  }
  RankInterval ranks = {0, count + 1};
  double below = 0;  // The probability of fewer than `values` values below the percentile.
  // Terms further down are negligible.
  const int64_t from = std::max<int64_t>(0, std::llround(n * fraction - 10 * deviation - 20));
  for (int64_t values = from; values <= count; ++values) {
    const double k = static_cast<double>(values);
    // The value of rank k is above the percentile if fewer than k values are below it.
    if (values > 0 && below <= kTail) ranks.low = values;
    below += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                      k * std::log(fraction) + (n - k) * std::log1p(-fraction));
    // The value of rank k + 1 is below the percentile if more than k values are.
    if (values < count && 1 - below <= kTail) {
      ranks.high = values + 1;
      break;
    }
  }
  return ranks;
}

Estimate EstimatePercentile(const Histogram& histogram, double fraction,
                            const std::vector<double>& by_interval) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  const RankInterval ranks = RanksAround(histogram.count(), fraction);
  const auto value = [&](int64_t rank) { return static_cast<double>(histogram.ValueAtRank(rank)); };
  const double scatter = Scatter(by_interval);
  Estimate estimate;
  estimate.value = static_cast<double>(histogram.ValueAt(fraction));
  estimate.low = ranks.low < 1 ? -kUnknown : std::min(value(ranks.low), estimate.value - scatter);
  estimate.high = ranks.high > histogram.count()
                      ? kUnknown
                      : std::max(value(ranks.high), estimate.value + scatter);
  return estimate;
}

Estimate EstimateMean(double value, const std::vector<double>& by_interval) {
  const double scatter = by_interval.size() < kMinIntervals
                             ? std::numeric_limits<double>::infinity()
                             : Scatter(by_interval);
  return {value, value - scatter, value + scatter};
}

absl::StatusOr<std::string> CompareText(const ComparedReport& a, const ComparedReport& b) {
  const bool is_only = a.steps.size() == 1 && b.steps.size() == 1;
  std::vector<bool> is_matched_a(a.steps.size());
  std::vector<bool> is_matched_b(b.steps.size());
  std::string tables;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    for (size_t j = 0; j < b.steps.size() && !is_matched_a[i]; ++j) {
      if (is_matched_b[j] || (a.steps[i].name != b.steps[j].name && !is_only)) continue;
      is_matched_a[i] = is_matched_b[j] = true;
      absl::StrAppend(&tables, tables.empty() ? "" : "\n", StepTable(a.steps[i], b.steps[j]));
    }
  }
  if (tables.empty()) return absl::InvalidArgumentError("the reports have no step in common");
  const std::string only =
      absl::StrCat(Unmatched(a, is_matched_a, "a"), Unmatched(b, is_matched_b, "b"));
  return absl::StrCat(DifferingSettings(a, b), tables, only.empty() ? "" : "\n", only);
}

}  // namespace gemmd
