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
  using Collect = void (*)(const Snapshot& snapshot, Samples& samples);

  // `series`: the name and the names of the labels, as in "gemmd_products_total{device,code}". A
  // metric is a counter if its name ends with _total, and otherwise a gauge, unless `type` is
  // given. Its unit is the one that its name has, unless that is given.
  constexpr Metric(std::string_view series, std::string_view help_text, Collect collect_samples,
                   std::optional<MetricType> given_type = {}, std::string_view given_unit = "")
      : name(series.substr(0, series.find('{'))),
        type(given_type.value_or(name.ends_with("_total") ? MetricType::kCounter
                                                          : MetricType::kGauge)),
        unit(given_unit.empty() ? UnitIn(name) : given_unit),
        help(help_text),
        collect(collect_samples) {
    series.remove_prefix(name.size());
    for (size_t i = 0; !series.empty() && series != "}"; ++i) {
      series.remove_prefix(1);  // A brace or a comma.
      labels[i] = series.substr(0, series.find_first_of(",}"));
      series.remove_prefix(labels[i].size());
    }
  }

  std::string_view name;
  MetricType type;
  std::array<std::string_view, kMaxLabels> labels = {};  // Names, then empty strings.
  std::string_view unit;  // As Prometheus writes it: `seconds`; empty for a plain count.
  std::string_view help;  // Stands alone, without a full stop.
  Collect collect;

 private:
  static constexpr std::string_view UnitIn(std::string_view name) {
    for (const std::string_view unit :
         {"_seconds", "_bytes", "_ratio", "_watts", "_joules", "_hertz", "_celsius"}) {
      if (name.find(unit) != name.npos) return unit.substr(1);
    }
    return name.ends_with("_us") ? "microseconds" : "";
  }
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
