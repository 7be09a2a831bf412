// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/endpoint.h"

#include <prometheus/text_serializer.h>

#include <optional>
#include <utility>
#include <vector>

#include "server/metrics/exposition.h"

namespace gemmd {
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
