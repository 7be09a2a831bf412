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

std::optional<std::string> PageAt(std::string_view path, const Observer& observer) {
  const auto lists = MetricsAt(path);
  if (!lists) return std::nullopt;
  const Snapshot snapshot = observer.ObserveWithKernels();
  std::vector<prometheus::MetricFamily> all;
  for (const auto metrics : *lists) {
    for (auto& family : Families(metrics, snapshot)) all.push_back(std::move(family));
  }
  return static_cast<const prometheus::Serializer&>(prometheus::TextSerializer()).Serialize(all);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> ServeMetrics(HttpSocket socket,
                                                           const Observer& observer,
                                                           const Clock& clock) {
  return HttpListener::Start(
      std::move(socket), [&observer](std::string_view path) { return PageAt(path, observer); },
      clock);
}

}  // namespace gemmd
