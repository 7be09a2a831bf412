// SPDX-License-Identifier: Apache-2.0
//
// The metrics of devices, their queues and workers, and the kernels that ran on them. The label
// `device` has the names of served devices, `kernel` those of the first kernels that ran
// (Stats::kMostKernels): callers cannot add values to either.
#include <array>
#include <string_view>

#include "server/metrics/metric.h"

namespace gemmd {
namespace {

constexpr double kNsPerSecond = 1e9;

double Seconds(int64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }

// Adds one number for each device.
template <typename Number>
void OfEach(const Snapshot& now, Samples& samples, Number number) {
  for (const DeviceSnapshot& device : now.devices) {
    samples.Add({device.info->name}, number(device));
  }
}

// Adds one number for each GPU. Other devices have no such number, and a 0 would not say so.
template <typename Number>
void OfEachGpu(const Snapshot& now, Samples& samples, Number number) {
  for (const DeviceSnapshot& device : now.devices) {
    if (device.info->kind != DeviceKind::kCuda) continue;
    samples.Add({device.info->name}, number(device));
  }
}

void CollectInfo(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    const DeviceInfo& info = *device.info;
    samples.Add({info.name, NameOf(info.kind), info.chip, info.description}, 1.0);
  }
}

void CollectEnds(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    // Every code has a sample from the start: a rate needs the 0 before the first end.
    for (size_t code = 0; code < kStatusCodes; ++code) {
      samples.Add(
          {device.info->name, absl::StatusCodeToString(static_cast<absl::StatusCode>(code))},
          device.totals.ends[code]);
    }
  }
}

void CollectCanaries(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    samples.Add({device.info->name, "passed"}, device.condition.canaries_passed);
    samples.Add({device.info->name, "failed"}, device.condition.canaries_failed);
  }
}

void CollectLaunches(const Snapshot& now, Samples& samples) {
  constexpr std::array<std::string_view, kLaunchSizes> kProducts = {
      "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-"};
  for (const DeviceSnapshot& device : now.devices) {
    for (size_t size = 0; size < kLaunchSizes; ++size) {
      samples.Add({device.info->name, kProducts[size]}, device.load.launches[size]);
    }
  }
}

void CollectJoined(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    samples.Add({device.info->name, "stacked"}, device.load.stacked_requests);
    samples.Add({device.info->name, "batched"}, device.load.batched_requests);
  }
}

void CollectDurations(const Snapshot& now, Samples& samples) {
  for (const Stats::KindTotals& kind : now.kinds) {
    samples.Add({NameOf(kind.device_kind)}, kind.total);
  }
}

void CollectStages(const Snapshot& now, Samples& samples) {
  for (const Stats::KindTotals& kind : now.kinds) {
    for (size_t i = 0; i < kStages; ++i) {
      samples.Add({NameOf(static_cast<Stage>(i)), NameOf(kind.device_kind)}, kind.stages[i]);
    }
  }
}

void CollectKernelProducts(const Snapshot& now, Samples& samples) {
  for (const Stats::KernelTotals& kernel : now.kernels) {
    samples.Add({NameOf(kernel.device_kind), kernel.kernel}, kernel.products);
  }
}

void CollectKernelSeconds(const Snapshot& now, Samples& samples) {
  for (const Stats::KernelTotals& kernel : now.kernels) {
    samples.Add({NameOf(kernel.device_kind), kernel.kernel}, Seconds(kernel.compute_ns));
  }
}

static_assert(Stats::kMostKernels == 48, "as the help below says");

constexpr Metric kDeviceMetrics[] = {
    {.name = "gemmd_products_total",
     .type = MetricType::kCounter,
     .labels = {"device", "code"},
     .help = "Admitted products that have ended, by gRPC's status; CANCELLED and "
             "DEADLINE_EXCEEDED were dropped from the queue or aborted on the device",
     .collect = CollectEnds},
    {.name = "gemmd_product_duration_seconds",
     .type = MetricType::kHistogram,
     .labels = {"device_kind"},
     .unit = "seconds",
     .help = "Duration of products that are OK, from the arrival of the last byte to the answer",
     .collect = CollectDurations},
    {.name = "gemmd_product_stage_duration_seconds",
     .type = MetricType::kHistogram,
     .labels = {"stage", "device_kind"},
     .unit = "seconds",
     .help = "Duration of each stage of products that are OK: receive, queue, copy_in, "
             "compute, copy_out, send_prepare",
     .collect = CollectStages},
    {.name = "gemmd_kernel_products_total",
     .type = MetricType::kCounter,
     .labels = {"device_kind", "kernel"},
     .help = "Products that are OK, by kernel; the first 48 kernels that run are named, all others "
             "are called other",
     .collect = CollectKernelProducts},
    {.name = "gemmd_kernel_compute_seconds_total",
     .type = MetricType::kCounter,
     .labels = {"device_kind", "kernel"},
     .unit = "seconds",
     .help = "Time that kernels ran for products that are OK, which is once for products that ran "
             "as one, with the names of gemmd_kernel_products_total",
     .collect = CollectKernelSeconds},
    {.name = "gemmd_operations_total",
     .type = MetricType::kCounter,
     .labels = {"device"},
     .help = "Multiplications and additions of products that are OK",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.totals.operations; });
         }},
    {.name = "gemmd_operand_bytes_total",
     .type = MetricType::kCounter,
     .labels = {"device"},
     .unit = "bytes",
     .help = "Bytes of the operands of products that are OK",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.totals.bytes_read; });
         }},
    {.name = "gemmd_result_bytes_total",
     .type = MetricType::kCounter,
     .labels = {"device"},
     .unit = "bytes",
     .help = "Bytes of the results of products that are OK",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.totals.bytes_written; });
         }},
    {.name = "gemmd_device_busy_seconds_total",
     .type = MetricType::kCounter,
     .labels = {"device"},
     .unit = "seconds",
     .help = "Time that the device had a product, from the launch to the end, whatever the end "
             "was; counts the running product up to now",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return Seconds(device.load.busy_ns); });
         }},
    {.name = "gemmd_abort_seconds",
     .type = MetricType::kHistogram,
     .labels = {"device"},
     .unit = "seconds",
     .help = "Time for which the device went on with a product that had been cancelled or stopped, "
             "or whose deadline had passed",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.load.aborts; });
         }},
    {.name = "gemmd_launches_total",
     .type = MetricType::kCounter,
     .labels = {"device", "products"},
     .help = "Launches on the device, by how many products ran as one",
     .collect = CollectLaunches},
    {.name = "gemmd_joined_products_total",
     .type = MetricType::kCounter,
     .labels = {"device", "how"},
     .help = "Products of launches that had more than one: stacked, with one B for all, or "
             "batched, with one shape for all",
     .collect = CollectJoined},
    {.name = "gemmd_queue_requests",
     .labels = {"device"},
     .help = "Products that wait for the device",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.load.queued_requests; });
         }},
    {.name = "gemmd_queue_bytes",
     .labels = {"device"},
     .unit = "bytes",
     .help = "Bytes of operands and results of products that wait for the device",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.load.queued_bytes; });
         }},
    {.name = "gemmd_queue_predicted_seconds",
     .labels = {"device"},
     .unit = "seconds",
     .help = "Predicted time of the products that wait for the device and of the running one: "
             "the number to scale replicas by",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return Seconds(device.load.backlog_ns); });
         }},
    {.name = "gemmd_device_info",
     .labels = {"device", "device_kind", "chip", "description"},
     .help = "1; the labels tell what the device is",
     .collect = CollectInfo},
    {.name = "gemmd_device_ready",
     .labels = {"device"},
     .help = "1 where the device takes products, otherwise 0",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.is_ready ? 1.0 : 0.0; });
         }},
    {.name = "gemmd_device_memory_bytes",
     .labels = {"device"},
     .unit = "bytes",
     .help = "Memory that the device computes in",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEach(now, s, [](const auto& device) { return device.info->memory_bytes; });
         }},
    {.name = "gemmd_device_memory_limit_bytes",
     .labels = {"device"},
     .unit = "bytes",
     .help = "Memory of a GPU that products may use (--gpu-memory-bytes); other devices have "
             "no limit",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const auto& device) { return device.info->memory_limit_bytes; });
         }},
    {.name = "gemmd_device_staging_bytes",
     .labels = {"device"},
     .unit = "bytes",
     .help = "Memory of the host through which a GPU gets operands; other devices have none",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const auto& device) { return device.condition.staging_bytes; });
         }},
    {.name = "gemmd_device_staging_used_bytes",
     .labels = {"device"},
     .unit = "bytes",
     .help = "Memory of the host that the running product of a GPU uses for operands and "
             "result; other devices have none",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s,
                     [](const auto& device) { return device.condition.staging_used_bytes; });
         }},
    {.name = "gemmd_worker_restarts_total",
     .type = MetricType::kCounter,
     .labels = {"device"},
     .help = "Times that the worker process of a GPU was started again",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachGpu(now, s, [](const auto& device) { return device.condition.worker_restarts; });
         }},
    {.name = "gemmd_canaries_total",
     .type = MetricType::kCounter,
     .labels = {"device", "result"},
     .help = "Products with known bits that the device was given at the start and, on a GPU, from "
             "time to time: passed, failed",
     .collect = CollectCanaries},
};

}  // namespace

absl::Span<const Metric> DeviceMetrics() { return kDeviceMetrics; }

}  // namespace gemmd
