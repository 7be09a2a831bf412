// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_statistics.h"

#include <numeric>
#include <optional>
#include <string>

namespace gemmd {
namespace {

using Counts = google::protobuf::RepeatedPtrField<v1::Count>;

void AddCount(std::string_view name, int64_t count, Counts& counts) {
  v1::Count* const wire = counts.Add();
  wire->set_name(std::string(name));
  wire->set_count(count);
}

void FillHistogram(const LatencyHistogram::Snapshot& histogram, v1::DurationHistogram& wire) {
  for (const int64_t bound : LatencyHistogram::kBoundsNs) wire.add_bounds_ns(bound);
  for (const int64_t count : histogram.counts) wire.add_counts(count);
  wire.set_sum_ns(histogram.sum_ns);
}

void FillGpu(const GpuSample& sample, v1::GpuReading& wire) {
  const GpuReading& gpu = sample.reading;
  wire.set_uuid(sample.uuid);
  if (gpu.utilization) wire.set_utilization(*gpu.utilization);
  if (gpu.power_watts) wire.set_power_watts(*gpu.power_watts);
  if (gpu.power_limit_watts) wire.set_power_limit_watts(*gpu.power_limit_watts);
  if (gpu.memory_bytes) wire.set_memory_bytes(*gpu.memory_bytes);
  if (gpu.memory_used_bytes) wire.set_memory_used_bytes(*gpu.memory_used_bytes);
  if (gpu.sm_clock_hertz) wire.set_sm_clock_hertz(*gpu.sm_clock_hertz);
  if (gpu.temperature_celsius) wire.set_temperature_celsius(*gpu.temperature_celsius);
  if (gpu.ecc_uncorrected) wire.set_ecc_uncorrected_errors(*gpu.ecc_uncorrected);
}

void FillDevice(const DeviceSnapshot& device, v1::DeviceStatistics& wire) {
  wire.set_name(device.info->name);
  wire.set_ready(device.is_ready);
  wire.set_queued_requests(device.load.queued_requests);
  wire.set_queued_bytes(device.load.queued_bytes);
  wire.set_predicted_queue_ns(device.load.backlog_ns);
  const Stats::DeviceTotals& totals = device.totals;
  for (size_t code = 0; code < kStatusCodes; ++code) {
    if (totals.ends[code] == 0) continue;
    AddCount(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)), totals.ends[code],
             *wire.mutable_ends());
  }
  wire.set_operations(totals.operations);
  wire.set_bytes_read(totals.bytes_read);
  wire.set_bytes_written(totals.bytes_written);
  wire.set_busy_ns(device.load.busy_ns);
  const auto& launches = device.load.launches;
  wire.set_launches(std::accumulate(launches.begin(), launches.end(), int64_t{0}));
  wire.set_stacked_products(device.load.stacked_requests);
  wire.set_batched_products(device.load.batched_requests);
  FillHistogram(totals.total, *wire.mutable_total());
  wire.set_worker_restarts(device.condition.worker_restarts);
  wire.set_canaries_passed(device.condition.canaries_passed);
  wire.set_canaries_failed(device.condition.canaries_failed);
  for (const int64_t count : launches) wire.add_launches_by_products(count);
  wire.set_tensor_bytes(device.condition.tensor_bytes);
  wire.set_tensor_hits(device.condition.tensor_hits);
  wire.set_tensors_brought(device.condition.tensors_brought);
  wire.set_tensors_evicted(device.condition.tensors_evicted);
  if (device.gpu) FillGpu(*device.gpu, *wire.mutable_gpu());
}

void FillTensors(const TensorStore::Load& tensors, v1::TensorStatistics& wire) {
  wire.set_sessions(tensors.sessions);
  wire.set_tensors(tensors.tensors);
  wire.set_uploads(tensors.uploads);
  wire.set_host_bytes(tensors.bytes);
  wire.set_max_host_bytes(tensors.max_bytes);
  wire.set_uploads_complete(tensors.uploads_complete);
  wire.set_uploads_known(tensors.uploads_known);
  wire.set_expired(tensors.tensors_expired);
  wire.set_lost(tensors.tensors_lost);
  for (const TensorStore::OwnerLoad& owner : tensors.owners) {
    v1::OwnerStatistics& one = *wire.add_owners();
    one.set_name(owner.name);
    one.set_tensors(owner.tensors);
    one.set_host_bytes(owner.bytes);
    one.set_caller(owner.caller);
  }
}

}  // namespace

v1::GetStatisticsResponse ToWire(const Snapshot& snapshot, int64_t uptime_ns,
                                 int64_t started_unix_ns) {
  v1::GetStatisticsResponse wire;
  wire.set_uptime_ns(uptime_ns);
  wire.set_started_unix_ns(started_unix_ns);
  wire.set_draining(snapshot.is_draining);
  wire.set_admitted_requests(snapshot.admission.requests);
  wire.set_max_admitted_requests(snapshot.limits.max_requests);
  wire.set_admitted_bytes(snapshot.admission.bytes);
  wire.set_max_admitted_bytes(snapshot.limits.max_bytes);
  wire.set_admissions(snapshot.admission.admitted);
  for (const RefusalCount& refusal : RefusalCounts(snapshot)) {
    AddCount(refusal.reason, refusal.count, *wire.mutable_refusals());
  }
  for (const DeviceSnapshot& device : snapshot.devices) FillDevice(device, *wire.add_devices());
  FillTensors(snapshot.tensors, *wire.mutable_tensors());
  for (const Stats::KernelTotals& kernel : snapshot.kernels) {
    if (kernel.products == 0) continue;
    v1::KernelStatistics& one = *wire.add_kernels();
    one.set_device_kind(std::string(NameOf(kernel.device_kind)));
    one.set_name(std::string(kernel.kernel));
    one.set_products(kernel.products);
    one.set_compute_ns(kernel.compute_ns);
  }
  for (const RuleUse::Totals& caller : snapshot.callers) {
    v1::CallerStatistics& one = *wire.add_callers();
    one.set_rule(caller.rule);
    one.set_answered(caller.answered);
    one.set_failed(caller.failed);
    one.set_refused(caller.refused);
    one.set_compute_ns(caller.compute_ns);
    const auto bytes = snapshot.tensors.bytes_of_rules.find(caller.rule);
    if (bytes != snapshot.tensors.bytes_of_rules.end()) one.set_tensor_bytes(bytes->second);
  }
  return wire;
}

}  // namespace gemmd
