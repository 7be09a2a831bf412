// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/exposition.h"

#include <prometheus/text_serializer.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/matrix/text.h"

namespace gemmd {

namespace {

// By MetricType.
struct KnownType {
  prometheus::MetricType type;
  std::string_view name;
};
constexpr KnownType kTypes[] = {{prometheus::MetricType::Counter, "counter"},
                                {prometheus::MetricType::Gauge, "gauge"},
                                {prometheus::MetricType::Histogram, "histogram"}};

const KnownType& Known(MetricType type) { return kTypes[static_cast<size_t>(type)]; }

prometheus::ClientMetric::Histogram ToSeconds(const LatencyHistogram& histogram) {
  constexpr double kNsInSecond = 1e9;
  prometheus::ClientMetric::Histogram seconds;
  seconds.sample_sum = static_cast<double>(histogram.sum_ns) / kNsInSecond;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    seconds.sample_count += static_cast<uint64_t>(histogram.counts[i]);
    // The serializer adds the bucket without a bound.
    if (i == LatencyHistogram::kBounds) break;
    const auto bound = static_cast<double>(LatencyHistogram::kBoundsNs[i]) / kNsInSecond;
    seconds.bucket.push_back({seconds.sample_count, bound});
  }
  return seconds;
}

prometheus::ClientMetric ToPrometheus(const Metric& metric, const Samples::Sample& sample) {
  prometheus::ClientMetric made;
  for (size_t i = 0; i < sample.labels.size(); ++i) {
    made.label.push_back({std::string(metric.labels[i]), sample.labels[i]});
  }
  switch (metric.type) {
    case MetricType::kCounter: made.counter.value = sample.value; break;
    case MetricType::kHistogram: made.histogram = ToSeconds(sample.histogram); break;
    case MetricType::kGauge: made.gauge.value = sample.value; break;
  }
  return made;
}

// Texts of metrics need no escaping: a test checks that they have only characters that JSON does
// not escape.
std::string Quoted(std::string_view text) { return Concat("\"", text, "\""); }

void AddLines(std::string_view path, absl::Span<const Metric> metrics,
              std::vector<std::string>& lines) {
  for (const Metric& metric : metrics) {
    std::vector<std::string> labels;
    for (const std::string_view label : metric.labels) {
      if (!label.empty()) labels.push_back(Quoted(label));
    }
    lines.push_back(Concat("{\"path\":", Quoted(path), ",\"name\":", Quoted(metric.name),
                           ",\"type\":", Quoted(Known(metric.type).name),
                           ",\"unit\":", Quoted(metric.unit), ",\"labels\":[",
                           absl::StrJoin(labels, ","), "],\"help\":", Quoted(metric.help), "}"));
  }
}

}  // namespace

std::vector<prometheus::MetricFamily> Families(absl::Span<const Metric> metrics,
                                               const Snapshot& snapshot) {
  std::vector<prometheus::MetricFamily> families;
  for (const Metric& metric : metrics) {
    Samples samples;
    metric.collect(snapshot, samples);
    if (samples.all().empty()) continue;
    prometheus::MetricFamily& family = families.emplace_back();
    family.name = metric.name;
    family.help = metric.help;
    family.type = Known(metric.type).type;
    for (const Samples::Sample& sample : samples.all()) {
      family.metric.push_back(ToPrometheus(metric, sample));
    }
  }
  return families;
}

std::string MetricsJson() {
  std::vector<std::string> lines;
  for (const auto metrics : OwnMetrics()) AddLines(kMetricsPath, metrics, lines);
  AddLines(kTritonPath, TritonMetrics(), lines);
  return Concat("[\n", absl::StrJoin(lines, ",\n"), "\n]\n");
}

namespace {

std::optional<std::vector<absl::Span<const Metric>>> MetricsAt(std::string_view path) {
  if (path == kMetricsPath) return OwnMetrics();
  if (path == kTritonPath) return std::vector<absl::Span<const Metric>>{TritonMetrics()};
  return std::nullopt;
}

Page PageOf(const absl::Status& status) {
  if (status.ok()) return {.body = "ok\n"};
  return {.body = std::string(status.message()) + "\n", .is_available = false};
}

std::optional<Page> PageAt(std::string_view path, const Observer& observer, const Probes& probes) {
  if (path == kHealthPath) return PageOf(probes.health());
  if (path == kReadinessPath) return PageOf(probes.readiness());
  const auto lists = MetricsAt(path);
  if (!lists) return std::nullopt;
  const Snapshot snapshot = observer.ObserveForScrape();
  std::vector<prometheus::MetricFamily> all;
  for (const auto metrics : *lists) {
    for (auto& family : Families(metrics, snapshot)) all.push_back(std::move(family));
  }
  const prometheus::TextSerializer text;
  return Page{.body = static_cast<const prometheus::Serializer&>(text).Serialize(all)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> ServeMetrics(HttpSocket socket,
                                                           const Observer& observer,
                                                           const Clock& clock, Probes probes,
                                                           HttpStreamMaker make_stream) {
  return HttpListener::Start(
      std::move(socket),
      [&observer, probes = std::move(probes)](std::string_view path) {
        return PageAt(path, observer, probes);
      },
      clock, HttpLimits(), std::move(make_stream));
}

}  // namespace gemmd
