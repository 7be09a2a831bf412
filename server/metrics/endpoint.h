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

// Serves the metrics until the listener is destroyed. Borrows observer and clock.
// Errors: those of HttpListener::Start.
absl::StatusOr<std::unique_ptr<HttpListener>> ServeMetrics(HttpSocket socket,
                                                           const Observer& observer,
                                                           const Clock& clock);

}  // namespace gemmd
