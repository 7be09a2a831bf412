// SPDX-License-Identifier: Apache-2.0
//
// What Prometheus scrapes: the daemon's metrics on two paths.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/metrics/http_listener.h"
#include "server/metrics/observer.h"

namespace gemmd {

inline constexpr std::string_view kMetricsPath = "/metrics";
inline constexpr std::string_view kTritonPath = "/metrics/triton";

// Serves them until it is destroyed. Borrows the observer.
// Errors: as HttpListener::Start.
absl::StatusOr<std::unique_ptr<HttpListener>> ServeMetrics(std::string_view address,
                                                           const Observer& observer);

}  // namespace gemmd
