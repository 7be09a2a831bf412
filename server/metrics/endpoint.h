// SPDX-License-Identifier: Apache-2.0
//
// What is served by HTTP: the daemon's metrics on two paths, for Prometheus, and two probes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/metrics/http_listener.h"
#include "server/metrics/observer.h"

namespace gemmd {

// What the probes say; an error is 503 with its message. Threads: any.
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
