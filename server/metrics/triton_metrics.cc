// SPDX-License-Identifier: Apache-2.0
//
// The names of NVIDIA Triton Inference Server, for dashboards and autoscalers that know them. The
// daemon is one model, `gemm`, in one version; a product is a request, and a matrix of a batch is
// an inference. The names break Prometheus's rules for names, so they have a path of their own.
#include "server/metrics/metric.h"
#include "server/scheduling/saturating.h"

namespace gemmd {
namespace {

constexpr std::string_view kModel = "gemm";
constexpr std::string_view kModelVersion = "1";

int64_t Ends(const Snapshot& now, absl::StatusCode code) {
  int64_t sum = 0;
  for (const DeviceSnapshot& device : now.devices) {
    sum += device.totals.ends[static_cast<size_t>(code)];
  }
  return sum;
}

void CollectFailures(const Snapshot& now, Samples& samples) {
  // Products with either status were dropped while they waited, or aborted.
  const int64_t dropped =
      Ends(now, absl::StatusCode::kDeadlineExceeded) + Ends(now, absl::StatusCode::kUnavailable);
  // What Triton would refuse, too, because its queue is full or the time too short.
  int64_t busy = 0;
  for (const RefusalReason reason :
       {RefusalReason::kDeadline, RefusalReason::kBacklog, RefusalReason::kShare}) {
    busy += now.refusals[static_cast<size_t>(reason)];
  }
  const int64_t rejected = now.admission.refused_for_requests + now.admission.refused_for_bytes +
                           now.admission.refused_when_closed + busy + dropped;
  const int64_t cancelled = Ends(now, absl::StatusCode::kCancelled);
  int64_t ended = 0;
  for (size_t code = 1; code < kStatusCodes; ++code) {
    ended += Ends(now, static_cast<absl::StatusCode>(code));
  }
  int64_t other = -busy;
  for (const int64_t count : now.refusals) other += count;
  samples.Add({kModel, kModelVersion, "REJECTED"}, rejected);
  samples.Add({kModel, kModelVersion, "CANCELED"}, cancelled);
  samples.Add({kModel, kModelVersion, "BACKEND"}, ended - cancelled - dropped);
  samples.Add({kModel, kModelVersion, "OTHER"}, other);
}

template <typename Number>
void SumOfDevices(const Snapshot& now, Samples& samples, Number number) {
  int64_t sum = 0;
  for (const DeviceSnapshot& device : now.devices) sum = SaturatingSum(sum, number(device));
  samples.Add({kModel, kModelVersion}, sum);
}

void SumOfStage(const Snapshot& now, Samples& samples, Stage stage) {
  int64_t sum_ns = 0;
  for (const Stats::KindTotals& kind : now.kinds) {
    sum_ns = SaturatingSum(sum_ns, kind.stages[static_cast<size_t>(stage)].sum_ns);
  }
  samples.Add({kModel, kModelVersion}, sum_ns / 1000);
}

template <typename Number>
void OfEachGpu(const Snapshot& now, Samples& samples, Number number) {
  for (const DeviceSnapshot& device : now.devices) {
    // Two GPUs without a UUID would be the same series.
    if (!device.gpu || device.gpu->uuid.empty()) continue;
    samples.Add({device.gpu->uuid}, number(*device.gpu));
  }
}

// The energy since the daemon's start, as Triton counts it.
std::optional<double> EnergySinceStart(const GpuSample& gpu) {
  if (!gpu.reading.energy_joules || !gpu.joules_at_start) return std::nullopt;
  return *gpu.reading.energy_joules - *gpu.joules_at_start;
}

constexpr Metric kTritonMetrics[] = {
    {.name = "nv_inference_request_success",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .help = "Products that are OK",
     .collect =
         [](const Snapshot& now, Samples& s) {
           SumOfDevices(now, s, [](const auto& device) { return device.totals.ends[0]; });
         }},
    {.name = "nv_inference_request_failure",
     .type = MetricType::kCounter,
     .labels = {"model", "version", "reason"},
     .help = "Products that are not OK: REJECTED (queue full, no time before the deadline, "
             "draining, dropped from the queue, aborted at the deadline), CANCELED, BACKEND (the "
             "device failed), OTHER (refused because the "
             "request is wrong)",
     .collect = CollectFailures},
    {.name = "nv_inference_count",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .help = "Matrices multiplied, each of a batch",
     .collect =
         [](const Snapshot& now, Samples& s) {
           SumOfDevices(now, s, [](const auto& device) { return device.totals.matrices; });
         }},
    {.name = "nv_inference_exec_count",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .help = "Launches, a batch as one",
     .collect =
         [](const Snapshot& now, Samples& s) {
           SumOfDevices(now, s, [](const auto& device) { return device.totals.ends[0]; });
         }},
    {.name = "nv_inference_pending_request_count",
     .labels = {"model", "version"},
     .help = "Products that wait for a device",
     .collect =
         [](const Snapshot& now, Samples& s) {
           SumOfDevices(now, s, [](const auto& device) { return device.load.queued_requests; });
         }},
    {.name = "nv_inference_request_duration_us",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .unit = "microseconds",
     .help = "Sum of the durations of products that are OK",
     .collect =
         [](const Snapshot& now, Samples& s) {
           SumOfDevices(now, s,
                        [](const auto& device) { return device.totals.total.sum_ns / 1000; });
         }},
    {.name = "nv_inference_queue_duration_us",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .unit = "microseconds",
     .help = "Sum of the times for which products that are OK waited for the device",
     .collect = [](const Snapshot& now, Samples& s) { SumOfStage(now, s, Stage::kQueue); }},
    {.name = "nv_inference_compute_input_duration_us",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .unit = "microseconds",
     .help = "Sum of the times in which operands were copied to the device",
     .collect = [](const Snapshot& now, Samples& s) { SumOfStage(now, s, Stage::kCopyIn); }},
    {.name = "nv_inference_compute_infer_duration_us",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .unit = "microseconds",
     .help = "Sum of the times in which kernels ran",
     .collect = [](const Snapshot& now, Samples& s) { SumOfStage(now, s, Stage::kCompute); }},
    {.name = "nv_inference_compute_output_duration_us",
     .type = MetricType::kCounter,
     .labels = {"model", "version"},
     .unit = "microseconds",
     .help = "Sum of the times in which results were copied from the device",
     .collect = [](const Snapshot& now, Samples& s) { SumOfStage(now, s, Stage::kCopyOut); }},
    {.name = "nv_gpu_utilization",
     .labels = {"gpu_uuid"},
     .unit = "ratio",
     .help = "Share of the time in which some kernel ran on the GPU, as "
             "gemmd_gpu_utilization_ratio",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const GpuSample& gpu) { return gpu.reading.utilization; });
         }},
    {.name = "nv_gpu_memory_total_bytes",
     .labels = {"gpu_uuid"},
     .unit = "bytes",
     .help = "Memory of the GPU, as gemmd_gpu_memory_bytes",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const GpuSample& gpu) { return gpu.reading.memory_bytes; });
         }},
    {.name = "nv_gpu_memory_used_bytes",
     .labels = {"gpu_uuid"},
     .unit = "bytes",
     .help = "Memory of the GPU in use by all processes, as gemmd_gpu_memory_used_bytes",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const GpuSample& gpu) { return gpu.reading.memory_used_bytes; });
         }},
    {.name = "nv_gpu_power_usage",
     .labels = {"gpu_uuid"},
     .unit = "watts",
     .help = "Power that the GPU takes, as gemmd_gpu_power_watts",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const GpuSample& gpu) { return gpu.reading.power_watts; });
         }},
    {.name = "nv_gpu_power_limit",
     .labels = {"gpu_uuid"},
     .unit = "watts",
     .help = "Power that the GPU may take, as gemmd_gpu_power_limit_watts",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const GpuSample& gpu) { return gpu.reading.power_limit_watts; });
         }},
    {.name = "nv_energy_consumption",
     .type = MetricType::kCounter,
     .labels = {"gpu_uuid"},
     .unit = "joules",
     .help = "Energy that the GPU has taken since the daemon's start",
     .collect = [](const Snapshot& now, Samples& s) { OfEachGpu(now, s, EnergySinceStart); }},
};

}  // namespace

absl::Span<const Metric> TritonMetrics() { return kTritonMetrics; }

}  // namespace gemmd
