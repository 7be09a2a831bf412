// SPDX-License-Identifier: Apache-2.0
//
// Live views of a running load: a line on a terminal, and metrics for Prometheus.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/recorder.h"

namespace prometheus {
class Exposer;
}

namespace gemmd {

// "4.0 s  2,001.0/s  in flight 3  p50 310 us  p99 900 us  UNAVAILABLE 2". `calls_by_code`: since
// the beginning of the step.
std::string LiveLine(const LoadInterval& interval, const CallsByCode& calls_by_code);

class LiveView {
 public:
  // `out` null: shows nothing.
  LiveView(std::FILE* out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}

  void BeginStep(const std::string& name);
  void Show(const LoadInterval& interval, const CallsByCode& calls_by_code);
  void EndStep();

 private:
  std::FILE* out_;
  bool is_terminal_;
  CallsByCode calls_by_code_ = {};  // Since the beginning of the step.
};

// Serves the figures of a running load to Prometheus over HTTP, without encryption or
// authentication. Figures advance by whole intervals.
class LiveMetrics {
 public:
  // Errors: InvalidArgument for anything but an IP address and a port ("127.0.0.1:0",
  // "[::1]:9100"), and if listening there fails.
  static absl::StatusOr<std::unique_ptr<LiveMetrics>> Serve(const std::string& address);
  // Closes all connections.
  ~LiveMetrics();
  LiveMetrics(const LiveMetrics&) = delete;
  LiveMetrics& operator=(const LiveMetrics&) = delete;

  const std::string& address() const { return address_; }  // With the chosen port.

  // Begins a step. `target`: calls per second in an open loop, otherwise calls in flight.
  void BeginStep(absl::string_view name, bool is_open, double target);
  void Add(const LoadInterval& interval, const IntervalTally& calls);

 private:
  class Figures;
  LiveMetrics();

  std::shared_ptr<Figures> figures_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace gemmd
