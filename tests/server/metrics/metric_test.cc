// SPDX-License-Identifier: Apache-2.0
//
// The values of metrics for a known snapshot.
#include "server/metrics/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "kernels/matrix/text.h"
#include "server/system/clock.h"
#include "tests/server/metrics/all_metrics.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

// The values of a metric, by its labels separated by commas.
std::map<std::string, double> ValuesOf(std::string_view name, const Snapshot& snapshot) {
  std::map<std::string, double> values;
  for (const Metric& metric : AllMetrics()) {
    if (metric.name != name) continue;
    Samples samples;
    metric.collect(snapshot, samples);
    for (const Samples::Sample& sample : samples.all()) {
      std::string labels;
      for (const std::string& label : sample.labels) labels += (labels.empty() ? "" : ",") + label;
      EXPECT_TRUE(values.emplace(labels, sample.value).second) << name << " twice " << labels;
    }
  }
  return values;
}

// The sums of a histogram in nanoseconds, by its only label.
std::map<std::string, int64_t> SumsOf(std::string_view name, const Snapshot& snapshot) {
  std::map<std::string, int64_t> sums;
  for (const Metric& metric : AllMetrics()) {
    if (metric.name != name) continue;
    Samples samples;
    metric.collect(snapshot, samples);
    for (const Samples::Sample& sample : samples.all()) {
      sums[sample.labels.front()] = sample.histogram.sum_ns;
    }
  }
  return sums;
}

class MetricValueTest : public testing::Test {
 protected:
  MetricValueTest() {
    gpu_.name = "cuda:0";
    gpu_.kind = DeviceKind::kCuda;
    gpu_.chip = "sm_90";
    gpu_.description = "NVIDIA H200";
    cpu_.name = "cpu";
    snapshot_.devices.resize(2);
    snapshot_.devices[0].info = &gpu_;
    snapshot_.devices[0].is_ready = true;
    snapshot_.devices[1].info = &cpu_;
  }

  Counter& EndsOf(size_t device, absl::StatusCode code) {
    return snapshot_.devices[device].totals.ends[static_cast<size_t>(code)];
  }

  DeviceInfo gpu_;
  DeviceInfo cpu_;
  Snapshot snapshot_;
};

TEST_F(MetricValueTest, OfTheCertificate) {
  snapshot_.certificate = {.not_after_s = 1'800'000'000, .loads = 2, .refusals = 3};
  EXPECT_THAT(ValuesOf("gemmd_tls_certificate_not_after_timestamp_seconds", snapshot_),
              ElementsAre(Pair("", 1.8e9)));
  EXPECT_THAT(ValuesOf("gemmd_tls_certificate_loads_total", snapshot_),
              UnorderedElementsAre(Pair("loaded", 2), Pair("refused", 3)));
}

TEST_F(MetricValueTest, OfChecksOfAnswers) {
  for (size_t mode = 0; mode < kVerifyModes; ++mode) {
    const double number = static_cast<double>(mode);
    snapshot_.verifications[mode] = {.ends = {5, 6, 7},
                                     .took_ns = 8'000'000'000,
                                     .miss_probability = number / 4,
                                     .cost = number / 2};
  }
  EXPECT_THAT(ValuesOf("gemmd_verifications_total", snapshot_),
              testing::Contains(Pair("sampled,failed", 6)));
  EXPECT_THAT(ValuesOf("gemmd_verification_seconds_total", snapshot_),
              UnorderedElementsAre(Pair("sampled", 8), Pair("checksum", 8), Pair("duplicate", 8)));
  EXPECT_THAT(
      ValuesOf("gemmd_verification_miss_probability_total", snapshot_),
      UnorderedElementsAre(Pair("sampled", 0.25), Pair("checksum", 0.5), Pair("duplicate", 0.75)));
  EXPECT_THAT(
      ValuesOf("gemmd_verification_cost_total", snapshot_),
      UnorderedElementsAre(Pair("sampled", 0.5), Pair("checksum", 1), Pair("duplicate", 1.5)));
}

TEST_F(MetricValueTest, OfCallers) {
  for (const char* name : {"gemmd_caller_products_total", "gemmd_caller_compute_seconds_total",
                           "gemmd_caller_tensor_bytes"}) {
    EXPECT_THAT(ValuesOf(name, snapshot_), testing::IsEmpty());
  }
  snapshot_.callers = {
      {.rule = "a", .answered = 1, .failed = 2, .refused = 3, .compute_ns = 4'000'000'000},
      {.rule = "b/*", .answered = 5}};
  snapshot_.tensors.bytes_of_rules = {{"b/*", 6}};
  EXPECT_THAT(
      ValuesOf("gemmd_caller_products_total", snapshot_),
      UnorderedElementsAre(Pair("a,answered", 1), Pair("a,failed", 2), Pair("a,refused", 3),
                           Pair("b/*,answered", 5), Pair("b/*,failed", 0), Pair("b/*,refused", 0)));
  EXPECT_THAT(ValuesOf("gemmd_caller_compute_seconds_total", snapshot_),
              UnorderedElementsAre(Pair("a", 4), Pair("b/*", 0)));
  EXPECT_THAT(ValuesOf("gemmd_caller_tensor_bytes", snapshot_),
              UnorderedElementsAre(Pair("a", 0), Pair("b/*", 6)));
  snapshot_.signed_tokens = {.good = 1, .bad = 2, .unexamined = 3};
  EXPECT_THAT(ValuesOf("gemmd_signed_tokens_total", snapshot_),
              UnorderedElementsAre(Pair("good", 1), Pair("bad", 2), Pair("unexamined", 3)));
}

TEST_F(MetricValueTest, OfAdmission) {
  snapshot_.admission = {.requests = 3,
                         .bytes = 70,
                         .tickets = 4,
                         .admitted = 50,
                         .refused_for_requests = 7,
                         .refused_for_bytes = 8,
                         .refused_when_closed = 9,
                         .refused_for_memory = 14,
                         .pressure = Pressure::kSevere,
                         .pressure_changes = {16, 17, 18, 19}};
  snapshot_.silent_calls = 15;
  snapshot_.refusals = {1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14};
  EXPECT_THAT(ValuesOf("gemmd_admissions_total", snapshot_), ElementsAre(Pair("", 50)));
  EXPECT_THAT(ValuesOf("gemmd_admitted_requests", snapshot_), ElementsAre(Pair("", 3)));
  EXPECT_THAT(ValuesOf("gemmd_admitted_bytes", snapshot_), ElementsAre(Pair("", 70)));
  EXPECT_THAT(
      ValuesOf("gemmd_refusals_total", snapshot_),
      UnorderedElementsAre(Pair("queue_requests", 7), Pair("queue_bytes", 8), Pair("draining", 9),
                           Pair("memory", 14), Pair("invalid", 1), Pair("not_found", 2),
                           Pair("unsupported", 3), Pair("too_large", 4), Pair("not_ready", 5),
                           Pair("internal", 6), Pair("too_long", 10), Pair("deadline", 11),
                           Pair("backlog", 12), Pair("share", 13), Pair("kernel_refused", 14)));
  EXPECT_THAT(ValuesOf("gemmd_memory_pressure", snapshot_), ElementsAre(Pair("", 2)));
  EXPECT_THAT(ValuesOf("gemmd_memory_pressure_changes_total", snapshot_),
              UnorderedElementsAre(Pair("none", 16), Pair("high", 17), Pair("severe", 18),
                                   Pair("critical", 19)));
  EXPECT_THAT(ValuesOf("gemmd_silent_calls_total", snapshot_), ElementsAre(Pair("", 15)));
  snapshot_.tensors = {.sessions = 1,
                       .max_sessions = 2,
                       .tensors = 3,
                       .uploads = 4,
                       .bytes = 5,
                       .max_bytes = 6,
                       .uploads_complete = 7,
                       .uploads_known = 8,
                       .uploads_resumed = 9,
                       .uploads_mismatched = 10,
                       .tensors_expired = 11,
                       .sessions_dropped = 13,
                       .tensors_lost = 12};
  EXPECT_THAT(ValuesOf("gemmd_sessions", snapshot_), ElementsAre(Pair("", 1)));
  EXPECT_THAT(ValuesOf("gemmd_sessions_dropped_total", snapshot_), ElementsAre(Pair("", 13)));
  EXPECT_THAT(ValuesOf("gemmd_sessions_limit", snapshot_), ElementsAre(Pair("", 2)));
  EXPECT_THAT(ValuesOf("gemmd_tensors", snapshot_), ElementsAre(Pair("", 3)));
  EXPECT_THAT(ValuesOf("gemmd_tensor_uploads", snapshot_), ElementsAre(Pair("", 4)));
  EXPECT_THAT(ValuesOf("gemmd_tensor_bytes", snapshot_), testing::Contains(Pair("host", 5)));
  EXPECT_THAT(ValuesOf("gemmd_tensor_bytes_limit", snapshot_), ElementsAre(Pair("", 6)));
  EXPECT_THAT(
      ValuesOf("gemmd_tensor_uploads_total", snapshot_),
      testing::UnorderedElementsAre(Pair("complete", 7), Pair("known", 8), Pair("mismatch", 10)));
  EXPECT_THAT(ValuesOf("gemmd_tensor_uploads_resumed_total", snapshot_), ElementsAre(Pair("", 9)));
  EXPECT_THAT(ValuesOf("gemmd_tensors_expired_total", snapshot_), ElementsAre(Pair("", 11)));
  EXPECT_THAT(ValuesOf("gemmd_tensors_lost_total", snapshot_), ElementsAre(Pair("", 12)));
}

TEST_F(MetricValueTest, OfHandlers) {
  HandlerTimes times;
  times.Add(HandlerOf("ListKernels"), 3'000'000, 2'000'000);
  times.Add(HandlerOf("ListKernels"), 0, 1'000'000);
  snapshot_.handlers = times.Read();
  snapshot_.handlers_cpu = times.ReadLongestCpu();
  EXPECT_THAT(ValuesOf("gemmd_handler_longest_cpu_seconds", snapshot_),
              ElementsAre(Pair("ListKernels", 0.002)));
  EXPECT_THAT(ValuesOf("gemmd_handler_second_longest_cpu_seconds", snapshot_),
              ElementsAre(Pair("ListKernels", 0.001)));
  // Methods that were never called have no series.
  EXPECT_THAT(SumsOf("gemmd_handler_seconds", snapshot_),
              ElementsAre(Pair("ListKernels", 3'000'000)));
}

TEST_F(MetricValueTest, OfSpans) {
  snapshot_.spans = {.written = 7, .lost = 3};
  EXPECT_THAT(ValuesOf("gemmd_trace_spans_total", snapshot_),
              UnorderedElementsAre(Pair("written", 7), Pair("lost", 3)));
}

TEST_F(MetricValueTest, OfAborts) {
  snapshot_.devices[1].load.aborts = {.counts = {0, 2}, .sum_ns = 3'500};
  EXPECT_THAT(SumsOf("gemmd_abort_seconds", snapshot_),
              UnorderedElementsAre(Pair("cuda:0", 0), Pair("cpu", 3'500)));
}

TEST_F(MetricValueTest, OfDevices) {
  EndsOf(0, absl::StatusCode::kOk) = 10;
  EndsOf(0, absl::StatusCode::kAborted) = 2;
  snapshot_.devices[1].load = {.queued_requests = 4,
                               .queued_bytes = 99,
                               .backlog_ns = 1'500'000,
                               .busy_ns = 250'000'000,
                               .launches = {7, 0, 3},
                               .stacked_requests = 8,
                               .batched_requests = 4};
  snapshot_.devices[0].condition = {.worker_restarts = 5,
                                    .canaries_passed = 7,
                                    .canaries_failed = 1,
                                    .staging_bytes = 1024,
                                    .staging_used_bytes = 512};
  const std::map<std::string, double> products = ValuesOf("gemmd_products_total", snapshot_);
  EXPECT_EQ(products.at("cuda:0,OK"), 10);
  EXPECT_EQ(products.at("cuda:0,ABORTED"), 2);
  EXPECT_THAT(ValuesOf("gemmd_queue_requests", snapshot_),
              UnorderedElementsAre(Pair("cuda:0", 0), Pair("cpu", 4)));
  EXPECT_THAT(ValuesOf("gemmd_queue_bytes", snapshot_),
              UnorderedElementsAre(Pair("cuda:0", 0), Pair("cpu", 99)));
  EXPECT_THAT(ValuesOf("gemmd_queue_predicted_seconds", snapshot_),
              UnorderedElementsAre(Pair("cuda:0", 0), Pair("cpu", 0.0015)));
  EXPECT_THAT(ValuesOf("gemmd_device_busy_seconds_total", snapshot_),
              UnorderedElementsAre(Pair("cuda:0", 0), Pair("cpu", 0.25)));
  const std::map<std::string, double> launches = ValuesOf("gemmd_launches_total", snapshot_);
  EXPECT_EQ(launches.at("cpu,1"), 7);
  EXPECT_EQ(launches.at("cpu,3-4"), 3);
  EXPECT_EQ(launches.at("cpu,129-"), 0);
  EXPECT_THAT(ValuesOf("gemmd_joined_products_total", snapshot_),
              UnorderedElementsAre(Pair("cuda:0,stacked", 0), Pair("cuda:0,batched", 0),
                                   Pair("cpu,stacked", 8), Pair("cpu,batched", 4)));
  EXPECT_THAT(ValuesOf("gemmd_device_ready", snapshot_),
              UnorderedElementsAre(Pair("cuda:0", 1), Pair("cpu", 0)));
  EXPECT_THAT(ValuesOf("gemmd_worker_restarts_total", snapshot_),
              UnorderedElementsAre(Pair("cuda:0", 5), Pair("cpu", 0)));
  EXPECT_THAT(ValuesOf("gemmd_canaries_total", snapshot_),
              UnorderedElementsAre(Pair("cuda:0,passed", 7), Pair("cuda:0,failed", 1),
                                   Pair("cpu,passed", 0), Pair("cpu,failed", 0)));
  EXPECT_THAT(ValuesOf("gemmd_device_staging_used_bytes", snapshot_),
              ElementsAre(Pair("cuda:0", 512)));
  EXPECT_THAT(ValuesOf("gemmd_device_info", snapshot_),
              UnorderedElementsAre(Pair("cuda:0,cuda,sm_90,NVIDIA H200", 1), Pair("cpu,cpu,,", 1)));
}

// Prometheus sees the first failure only as a step from 0.
TEST_F(MetricValueTest, CountersAreThereBeforeTheirFirst) {
  const std::map<std::string, double> products = ValuesOf("gemmd_products_total", snapshot_);
  EXPECT_EQ(products.size(), 2 * kStatusCodes);
  EXPECT_EQ(products.at("cpu,OK"), 0);
  EXPECT_EQ(products.at("cpu,ABORTED"), 0);
  EXPECT_EQ(products.at("cuda:0,UNAUTHENTICATED"), 0);
  EXPECT_EQ(ValuesOf("gemmd_canaries_total", snapshot_).at("cpu,failed"), 0);
  EXPECT_EQ(ValuesOf("gemmd_refusals_total", snapshot_).size(), 4 + kRefusalReasons);
  EXPECT_EQ(ValuesOf("nv_inference_request_failure", snapshot_).size(), 4U);
}

TEST_F(MetricValueTest, OfAGpuWhatItTells) {
  EXPECT_TRUE(ValuesOf("gemmd_gpu_power_watts", snapshot_).empty());
  snapshot_.devices[0].gpu = GpuSample{.uuid = "GPU-1", .reading = {}, .joules_at_start = 100};
  snapshot_.devices[0].gpu->reading.energy_joules = 150;
  snapshot_.devices[0].gpu->reading.sm_clock_hertz = 1'755'000'000;
  snapshot_.devices[0].gpu->reading.ecc_uncorrected = 3;
  EXPECT_TRUE(ValuesOf("gemmd_gpu_power_watts", snapshot_).empty());
  EXPECT_THAT(ValuesOf("gemmd_gpu_energy_joules_total", snapshot_),
              ElementsAre(Pair("cuda:0,GPU-1", 150)));
  EXPECT_THAT(ValuesOf("nv_energy_consumption", snapshot_), ElementsAre(Pair("GPU-1", 50)));
  EXPECT_THAT(ValuesOf("gemmd_gpu_clock_hertz", snapshot_),
              ElementsAre(Pair("cuda:0,GPU-1,sm", 1'755'000'000)));
  EXPECT_THAT(ValuesOf("gemmd_gpu_ecc_errors_total", snapshot_),
              ElementsAre(Pair("cuda:0,GPU-1,uncorrected", 3)));
}

TEST_F(MetricValueTest, GpusWithoutANumberAreNotTheSameGpu) {
  for (DeviceSnapshot& device : snapshot_.devices) {
    device.gpu = GpuSample{};
    device.gpu->reading.power_watts = 100;
  }
  EXPECT_TRUE(ValuesOf("nv_gpu_power_usage", snapshot_).empty());
  EXPECT_EQ(ValuesOf("gemmd_gpu_power_watts", snapshot_).size(), 2U);
}

// The exposition pairs labels with names by position.
TEST_F(MetricValueTest, EachSampleHasAsManyLabelsAsItsMetric) {
  GpuReading all;
  all.utilization = all.memory_utilization = all.power_watts = all.power_limit_watts = 1;
  all.energy_joules = all.temperature_celsius = 1;
  all.memory_bytes = all.memory_used_bytes = all.sm_clock_hertz = all.memory_clock_hertz = 1;
  all.ecc_corrected = all.ecc_uncorrected = 1;
  snapshot_.devices[0].gpu = GpuSample{.uuid = "GPU-1", .reading = all, .joules_at_start = 0};
  snapshot_.kinds.resize(1);
  snapshot_.kernels.resize(1);
  snapshot_.handlers[0].counts[0] = 1;
  snapshot_.callers.resize(1);
  for (const Metric& metric : AllMetrics()) {
    Samples samples;
    metric.collect(snapshot_, samples);
    EXPECT_FALSE(samples.all().empty()) << metric.name;
    const auto labels =
        static_cast<size_t>(std::count_if(metric.labels.begin(), metric.labels.end(),
                                          [](std::string_view label) { return !label.empty(); }));
    for (const Samples::Sample& sample : samples.all()) {
      EXPECT_EQ(sample.labels.size(), labels) << metric.name;
    }
  }
}

TEST_F(MetricValueTest, OfKindsOfDevicesAndKernels) {
  Stats::KindTotals kind;
  kind.device_kind = DeviceKind::kSim;
  snapshot_.kinds = {kind};
  snapshot_.kernels = {{DeviceKind::kSim, "some", 3, 1'500'000'000},
                       {DeviceKind::kCpu, Stats::kOtherKernels, 4, 0}};
  EXPECT_THAT(ValuesOf("gemmd_product_duration_seconds", snapshot_), ElementsAre(Pair("sim", 0)));
  EXPECT_EQ(ValuesOf("gemmd_product_stage_duration_seconds", snapshot_).size(), kStages);
  EXPECT_THAT(ValuesOf("gemmd_kernel_products_total", snapshot_),
              UnorderedElementsAre(Pair("sim,some", 3), Pair("cpu,other", 4)));
  EXPECT_THAT(ValuesOf("gemmd_kernel_compute_seconds_total", snapshot_),
              UnorderedElementsAre(Pair("sim,some", 1.5), Pair("cpu,other", 0)));
}

TEST_F(MetricValueTest, UnderTritonsNames) {
  EndsOf(0, absl::StatusCode::kOk) = 10;
  EndsOf(1, absl::StatusCode::kOk) = 5;
  EndsOf(1, absl::StatusCode::kCancelled) = 2;
  EndsOf(1, absl::StatusCode::kDeadlineExceeded) = 3;
  EndsOf(1, absl::StatusCode::kInternal) = 4;
  EndsOf(1, absl::StatusCode::kUnavailable) = 7;  // Dropped by a drain.
  snapshot_.admission.refused_for_requests = 6;
  snapshot_.refusals = {1, 1, 1, 1, 1, 1, 1, 20, 30, 40};
  snapshot_.devices[0].totals.matrices = 40;
  snapshot_.devices[0].totals.total.sum_ns = 9'000'000;
  snapshot_.devices[1].load.queued_requests = 8;
  snapshot_.kinds.resize(2);
  for (Stats::KindTotals& kind : snapshot_.kinds) {
    kind.stages[static_cast<size_t>(Stage::kQueue)].sum_ns = 1'500'000;
  }
  EXPECT_THAT(ValuesOf("nv_inference_request_success", snapshot_), ElementsAre(Pair("gemm,1", 15)));
  EXPECT_THAT(ValuesOf("nv_inference_request_failure", snapshot_),
              UnorderedElementsAre(Pair("gemm,1,REJECTED", 106), Pair("gemm,1,CANCELED", 2),
                                   Pair("gemm,1,BACKEND", 4), Pair("gemm,1,OTHER", 7)));
  EXPECT_THAT(ValuesOf("nv_inference_count", snapshot_), ElementsAre(Pair("gemm,1", 40)));
  EXPECT_THAT(ValuesOf("nv_inference_pending_request_count", snapshot_),
              ElementsAre(Pair("gemm,1", 8)));
  EXPECT_THAT(ValuesOf("nv_inference_request_duration_us", snapshot_),
              ElementsAre(Pair("gemm,1", 9'000)));
  EXPECT_THAT(ValuesOf("nv_inference_queue_duration_us", snapshot_),
              ElementsAre(Pair("gemm,1", 3'000)));
}

// Each device's counter saturates, and so does the sum of all.
TEST_F(MetricValueTest, SumsOfDevicesStopAtTheLargestNumber) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (DeviceSnapshot& device : snapshot_.devices) {
    device.totals.matrices = kMax;
    device.totals.total.sum_ns = kMax;
  }
  snapshot_.kinds.resize(2);
  for (Stats::KindTotals& kind : snapshot_.kinds) {
    for (auto& stage : kind.stages) stage.sum_ns = kMax;
  }
  EXPECT_THAT(ValuesOf("nv_inference_count", snapshot_),
              ElementsAre(Pair("gemm,1", static_cast<double>(kMax))));
  for (const char* const name :
       {"nv_inference_request_duration_us", "nv_inference_queue_duration_us",
        "nv_inference_compute_infer_duration_us"}) {
    for (const auto& [labels, value] : ValuesOf(name, snapshot_)) {
      EXPECT_GE(value, static_cast<double>(kMax / 1000)) << name;
    }
  }
}

TEST_F(MetricValueTest, OfTheProcess) {
  EXPECT_GT(ValuesOf("process_resident_memory_bytes", snapshot_)[""], 1 << 20);
  EXPECT_GT(ValuesOf("process_open_fds", snapshot_)[""], 2);
  EXPECT_GT(ValuesOf("process_max_fds", snapshot_)[""], 2);
  EXPECT_GT(ValuesOf("process_cpu_seconds_total", snapshot_)[""], 0);
  const auto now = static_cast<double>(time(nullptr));
  const double started = ValuesOf("process_start_time_seconds", snapshot_)[""];
  EXPECT_GT(started, now - 3600);
  EXPECT_LE(started, now + 1);
}

// Runs for more than a second, in which the whole seconds of two clocks change at different times.
TEST_F(MetricValueTest, TheProcessStartedOnce) {
  const double started = ValuesOf("process_start_time_seconds", snapshot_)[""];
  const SteadyClock clock;
  const int64_t end_ns = clock.NowNs() + 1'100'000'000;
  while (clock.NowNs() < end_ns) {
    ASSERT_EQ(ValuesOf("process_start_time_seconds", snapshot_)[""], started);
  }
}

}  // namespace
}  // namespace gemmd
