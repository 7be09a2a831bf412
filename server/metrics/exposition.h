// SPDX-License-Identifier: Apache-2.0
//
// Metrics as Prometheus takes them, and as a list for programs.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/metrics/metric.h"

namespace gemmd {

// The metrics that have samples in the snapshot.
std::vector<prometheus::MetricFamily> Families(absl::Span<const Metric> metrics,
                                               const Snapshot& snapshot);

// Every metric of every path as JSON: an array of objects with path, name, type, unit, labels and
// help, one object a line.
std::string MetricsJson();

}  // namespace gemmd
