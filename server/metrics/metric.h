// SPDX-License-Identifier: Apache-2.0
//
// One metric as data: its name, its meaning, and how its samples are computed from a snapshot. Both
// the served pages and the documentation are made from lists of these.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/metrics/observer.h"
#include "server/product/counts.h"

namespace gemmd {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// The samples of one metric at one moment: values, each with the values of its labels in order.
class Samples {
 public:
  struct Sample {
    std::vector<std::string> labels;
    double value = 0;
    LatencyHistogram histogram;  // Instead of the value, for a histogram.
  };

  void Add(std::initializer_list<std::string_view> labels, double value) {
    all_.push_back({{labels.begin(), labels.end()}, value, {}});
  }
  void Add(std::initializer_list<std::string_view> labels, int64_t value) {
    Add(labels, static_cast<double>(value));
  }
  void Add(std::initializer_list<std::string_view> labels, bool is_true) {
    Add(labels, is_true ? 1.0 : 0.0);
  }
  void Add(std::initializer_list<std::string_view> labels, const LatencyHistogram& histogram) {
    all_.push_back({{labels.begin(), labels.end()}, 0, histogram});
  }
  // Adds nothing if there is no value.
  template <typename T>
  void Add(std::initializer_list<std::string_view> labels, const std::optional<T>& value) {
    if (value) Add(labels, *value);
  }

  const std::vector<Sample>& all() const { return all_; }

 private:
  std::vector<Sample> all_;
};

inline constexpr size_t kMaxLabels = 4;

struct Metric {
  std::string_view name;
  MetricType type = MetricType::kGauge;
  std::array<std::string_view, kMaxLabels> labels = {};  // Names, then empty strings.
  std::string_view unit = "";  // As Prometheus writes it: `seconds`; empty for a plain count.
  std::string_view help;       // Stands alone, without a full stop.
  void (*collect)(const Snapshot& snapshot, Samples& samples) = nullptr;
};

// The paths on which metrics are served.
inline constexpr std::string_view kMetricsPath = "/metrics";        // gemmd's own metrics.
inline constexpr std::string_view kTritonPath = "/metrics/triton";  // Triton's names.

// The paths of probes: whether the process is alive, and whether it takes products.
inline constexpr std::string_view kHealthPath = "/healthz";
inline constexpr std::string_view kReadinessPath = "/readyz";

// gemmd's own metrics in six lists: the daemon, callers, devices and kernels, GPUs, resident
// tensors, the process.
std::vector<absl::Span<const Metric>> OwnMetrics();

// The metrics of NVIDIA Triton Inference Server whose meaning is the same here.
absl::Span<const Metric> TritonMetrics();

}  // namespace gemmd
