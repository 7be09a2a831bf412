// SPDX-License-Identifier: Apache-2.0
//
// The metrics of GPUs, as NVML tells them: what NVML does not tell has no samples.
#include "server/metrics/metric.h"

namespace gemmd {
namespace {

template <typename Number>
void OfEachReading(const Snapshot& now, Samples& samples, Number number) {
  for (const DeviceSnapshot& device : now.devices) {
    if (device.gpu) samples.Add({device.info->name, device.gpu->uuid}, number(*device.gpu));
  }
}

void CollectClocks(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    if (!device.gpu) continue;
    const GpuReading& reading = device.gpu->reading;
    samples.Add({device.info->name, device.gpu->uuid, "sm"}, reading.sm_clock_hertz);
    samples.Add({device.info->name, device.gpu->uuid, "memory"}, reading.memory_clock_hertz);
  }
}

void CollectEcc(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    if (!device.gpu) continue;
    const GpuReading& reading = device.gpu->reading;
    samples.Add({device.info->name, device.gpu->uuid, "corrected"}, reading.ecc_corrected);
    samples.Add({device.info->name, device.gpu->uuid, "uncorrected"}, reading.ecc_uncorrected);
  }
}

constexpr Metric kGpuMetrics[] = {
    {.name = "gemmd_gpu_utilization_ratio",
     .labels = {"device", "gpu_uuid"},
     .unit = "ratio",
     .help = "Share of the time in which some kernel ran on the GPU, 0 to 1; read once a "
             "second, as all metrics of gemmd_gpu_ are",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s, [](const GpuSample& gpu) { return gpu.reading.utilization; });
         }},
    {.name = "gemmd_gpu_memory_utilization_ratio",
     .labels = {"device", "gpu_uuid"},
     .unit = "ratio",
     .help = "Share of the time in which the memory of the GPU was read or written, 0 to 1",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s,
                         [](const GpuSample& gpu) { return gpu.reading.memory_utilization; });
         }},
    {.name = "gemmd_gpu_power_watts",
     .labels = {"device", "gpu_uuid"},
     .unit = "watts",
     .help = "Power that the GPU takes",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s, [](const GpuSample& gpu) { return gpu.reading.power_watts; });
         }},
    {.name = "gemmd_gpu_power_limit_watts",
     .labels = {"device", "gpu_uuid"},
     .unit = "watts",
     .help = "Power that the GPU may take",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s,
                         [](const GpuSample& gpu) { return gpu.reading.power_limit_watts; });
         }},
    {.name = "gemmd_gpu_energy_joules_total",
     .type = MetricType::kCounter,
     .labels = {"device", "gpu_uuid"},
     .unit = "joules",
     .help = "Energy that the GPU has taken since the driver was loaded",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s, [](const GpuSample& gpu) { return gpu.reading.energy_joules; });
         }},
    {.name = "gemmd_gpu_memory_bytes",
     .labels = {"device", "gpu_uuid"},
     .unit = "bytes",
     .help = "Memory of the GPU",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s, [](const GpuSample& gpu) { return gpu.reading.memory_bytes; });
         }},
    {.name = "gemmd_gpu_memory_used_bytes",
     .labels = {"device", "gpu_uuid"},
     .unit = "bytes",
     .help = "Memory of the GPU in use by all processes",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s,
                         [](const GpuSample& gpu) { return gpu.reading.memory_used_bytes; });
         }},
    {.name = "gemmd_gpu_clock_hertz",
     .labels = {"device", "gpu_uuid", "clock"},
     .unit = "hertz",
     .help = "Clock of the multiprocessors (sm) and of the memory (memory) of the GPU",
     .collect = CollectClocks},
    {.name = "gemmd_gpu_temperature_celsius",
     .labels = {"device", "gpu_uuid"},
     .unit = "celsius",
     .help = "Temperature of the GPU",
     .collect =
         [](const Snapshot& now, Samples& s) {
           OfEachReading(now, s,
                         [](const GpuSample& gpu) { return gpu.reading.temperature_celsius; });
         }},
    {.name = "gemmd_gpu_ecc_errors_total",
     .type = MetricType::kCounter,
     .labels = {"device", "gpu_uuid", "severity"},
     .help = "Errors of the memory of the GPU since the driver was loaded: corrected, "
             "uncorrected",
     .collect = CollectEcc},
};

}  // namespace

absl::Span<const Metric> GpuMetrics() { return kGpuMetrics; }

}  // namespace gemmd
