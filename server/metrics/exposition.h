// SPDX-License-Identifier: Apache-2.0
//
// Served over HTTP: the daemon's metrics on two paths, for Prometheus, and two probes. Programs can
// also get a list of the metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/metrics/http.h"
#include "server/metrics/metric.h"
#include "server/metrics/observer.h"

namespace gemmd {

// The metrics that have samples in the snapshot.
std::vector<prometheus::MetricFamily> Families(absl::Span<const Metric> metrics,
                                               const Snapshot& snapshot);

// Every metric of every path as JSON: an array of objects with path, name, type, unit, labels and
// help, one object per line.
std::string MetricsJson();

// The results of the probes; an error is 503 with its message. Threads: any.
struct Probes {
  std::function<absl::Status()> health = [] { return absl::OkStatus(); };
  std::function<absl::Status()> readiness = [] { return absl::OkStatus(); };
};

// Serves the metrics and the probes until the listener is destroyed. Borrows observer and clock.
// Errors: those of HttpListener::Start.
absl::StatusOr<std::unique_ptr<HttpListener>> ServeMetrics(
    HttpSocket socket, const Observer& observer, const Clock& clock, Probes probes = {},
    HttpStreamMaker make_stream = MakePlainStream);

}  // namespace gemmd
