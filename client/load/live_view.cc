// SPDX-License-Identifier: Apache-2.0
#include "client/load/live_view.h"

#include <arpa/inet.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <array>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/load/client_machine.h"
#include "client/terminal/text.h"
#include "kernels/matrix/text.h"

namespace gemmd {

std::string LiveLine(const LoadInterval& interval, const CallsByCode& calls_by_code) {
  const double seconds = static_cast<double>(interval.to_ns - interval.from_ns) * 1e-9;
  const double rate = seconds > 0 ? static_cast<double>(interval.ok) / seconds : 0;
  CallsByCode errors = calls_by_code;
  errors[0] = 0;
  const std::string codes = CodesText(errors);
  return absl::StrFormat("%8.1f s  %10.1f/s  in flight %-6d  p50 %-9s  p99 %-9s%s%s",
                         static_cast<double>(interval.to_ns) * 1e-9, rate, interval.in_flight,
                         FormatNanoseconds(interval.p50_ns), FormatNanoseconds(interval.p99_ns),
                         interval.to_ns <= 0 ? "  warm-up" : "",
                         codes.empty() ? "" : absl::StrCat("  ", codes));
}

void LiveView::BeginStep(const std::string& name) {
  calls_by_code_ = {};
  if (out_ != nullptr) absl::FPrintF(out_, "%s\n", name);
}

void LiveView::Show(const LoadInterval& interval, const CallsByCode& calls_by_code) {
  if (out_ == nullptr) return;
  for (size_t i = 0; i < calls_by_code_.size(); ++i) {
    calls_by_code_[i] += calls_by_code[i];
  }
  const std::string line = LiveLine(interval, calls_by_code_);
  // Returns to the start of the line, and clears the rest of a longer previous text.
  absl::FPrintF(out_, "%s%s%s", is_terminal_ ? "\r" : "", line, is_terminal_ ? "\x1b[K" : "\n");
  std::fflush(out_);
}

void LiveView::EndStep() {
  if (out_ != nullptr && is_terminal_) absl::FPrintF(out_, "\r\x1b[K");
}

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// The upper ends of the histogram's buckets, in microseconds.
constexpr std::array<int64_t, 18> kBucketsUs = {
    50,     100,     250,     500,     1'000,     2'500,     5'000,     10'000,     25'000,
    50'000, 100'000, 250'000, 500'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000, 60'000'000};

bool IsEndpoint(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos || !ParseDecimal<uint16_t>(address.substr(colon + 1))) return false;
  std::array<unsigned char, sizeof(in6_addr)> bytes = {};
  const std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), bytes.data()) == 1;
  }
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1;
}

MetricFamily Family(const char* name, const char* help, MetricType type) {
  return {.name = name, .help = help, .type = type, .metric = {}};
}

MetricFamily Gauge(const char* name, const char* help, double value,
                   std::vector<ClientMetric::Label> labels = {}) {
  MetricFamily family = Family(name, help, MetricType::Gauge);
  family.metric.emplace_back().gauge.value = value;
  family.metric.back().label = std::move(labels);
  return family;
}

ClientMetric::Histogram SecondsOf(const Histogram& latency) {
  ClientMetric::Histogram seconds;
  seconds.sample_count = static_cast<uint64_t>(latency.count());
  seconds.sample_sum = latency.sum_ns() * 1e-9;
  for (const int64_t end_us : kBucketsUs) {
    const int64_t below = latency.count() - latency.CountAbove(1000 * end_us);
    seconds.bucket.push_back({.cumulative_count = static_cast<uint64_t>(below),
                              .upper_bound = static_cast<double>(end_us) / 1e6});
  }
  seconds.bucket.push_back({.cumulative_count = seconds.sample_count,
                            .upper_bound = std::numeric_limits<double>::infinity()});
  return seconds;
}

}  // namespace

// The figures that scrapes read and the run writes.
class LiveMetrics::Figures : public prometheus::Collectable {
 public:
  void BeginStep(absl::string_view name, bool is_open, double target) {
    absl::MutexLock lock(&mutex_);
    ++steps_;
    step_ = std::string(name);
    is_open_ = is_open;
    target_ = target;
  }

  void Add(const LoadInterval& interval, const IntervalTally& calls) {
    absl::MutexLock lock(&mutex_);
    calls_.Merge(calls);
    in_flight_ = interval.in_flight;
  }

  std::vector<MetricFamily> Collect() const override {
    absl::MutexLock lock(&mutex_);
    MetricFamily calls =
        Family("gemmload_calls_total", "Calls that have ended, warm-up included, by gRPC status",
               MetricType::Counter);
    for (size_t i = 0; i < calls_.calls_by_code.size(); ++i) {
      if (i > 0 && calls_.calls_by_code[i] == 0) continue;
      ClientMetric& metric = calls.metric.emplace_back();
      metric.label = {{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(i))}};
      metric.counter.value = static_cast<double>(calls_.calls_by_code[i]);
    }
    MetricFamily latency = Family("gemmload_latency_seconds",
                                  "Time from when a call was due to its answer, for calls that "
                                  "ended OK, warm-up included",
                                  MetricType::Histogram);
    latency.metric.emplace_back().histogram = SecondsOf(calls_.latency);
    MetricFamily cpu =
        Family("gemmload_cpu_seconds_total", "CPU time of the load tester", MetricType::Counter);
    cpu.metric.emplace_back().counter.value = static_cast<double>(ProcessCpuNs()) * 1e-9;
    MetricFamily steps =
        Family("gemmload_steps_total", "Steps begun, or windows of a search", MetricType::Counter);
    steps.metric.emplace_back().counter.value = static_cast<double>(steps_);
    const char* const loop = is_open_ ? "open" : "closed";
    return {std::move(calls),
            std::move(latency),
            Gauge("gemmload_in_flight", "Calls in flight at the end of the last interval",
                  static_cast<double>(in_flight_)),
            Gauge("gemmload_step_target",
                  "Target of the current step: calls per second in an open loop, calls in flight "
                  "in a closed loop",
                  target_, {{"step", step_}, {"loop", loop}}),
            std::move(steps),
            std::move(cpu),
            Gauge("gemmload_usable_cores", "Cores that the load tester may use", usable_cores_)};
  }

 private:
  const double usable_cores_ = UsableCores();
  mutable absl::Mutex mutex_;
  IntervalTally calls_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string step_ ABSL_GUARDED_BY(mutex_);
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
  double target_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<std::unique_ptr<LiveMetrics>> LiveMetrics::Serve(const std::string& address) {
  if (!IsEndpoint(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics-listen: got \"", address,
                     "\", want an IP address and a port: 127.0.0.1:9100, [::1]:9100"));
  }
  std::unique_ptr<LiveMetrics> metrics(new LiveMetrics());
  // The library throws if it cannot listen. A silent peer occupies one thread until the request
  // times out.
  try {
    metrics->exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "4", "request_timeout_ms", "5000"});
  } catch (const std::exception&) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics-listen: got ", address, ", want an address that is free"));
  }
  metrics->exposer_->RegisterCollectable(metrics->figures_);
  metrics->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":",
                                   metrics->exposer_->GetListeningPorts().front());
  return metrics;
}

LiveMetrics::LiveMetrics() : figures_(std::make_shared<Figures>()) {}
LiveMetrics::~LiveMetrics() = default;

void LiveMetrics::BeginStep(absl::string_view name, bool is_open, double target) {
  figures_->BeginStep(name, is_open, target);
}

void LiveMetrics::Add(const LoadInterval& interval, const IntervalTally& calls) {
  figures_->Add(interval, calls);
}

}  // namespace gemmd
