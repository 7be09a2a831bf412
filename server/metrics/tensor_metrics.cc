// SPDX-License-Identifier: Apache-2.0
//
// The metrics of resident tensors. Sessions are no label: their owners would choose how many there
// are.
#include "server/metrics/metric.h"

namespace gemmd {
namespace {

void CollectUploads(const Snapshot& now, Samples& samples) {
  samples.Add({"complete"}, now.tensors.uploads_complete);
  samples.Add({"known"}, now.tensors.uploads_known);
  samples.Add({"mismatch"}, now.tensors.uploads_mismatched);
}

void CollectBytes(const Snapshot& now, Samples& samples) {
  samples.Add({"host"}, now.tensors.bytes);
  for (const DeviceSnapshot& device : now.devices) {
    if (device.info->kind != DeviceKind::kCuda) continue;
    samples.Add({device.info->name}, device.condition.tensor_bytes);
  }
}

void CollectCopies(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    if (device.info->kind != DeviceKind::kCuda) continue;
    samples.Add({device.info->name, "found"}, device.condition.tensor_hits);
    samples.Add({device.info->name, "made"}, device.condition.tensors_brought);
    samples.Add({device.info->name, "evicted"}, device.condition.tensors_evicted);
    samples.Add({device.info->name, "written_back"}, device.condition.tensors_written_back);
  }
}

constexpr Metric kTensorMetrics[] = {
    {.name = "gemmd_sessions",
     .help = "Sessions, which own resident tensors",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.sessions); }},
    {.name = "gemmd_sessions_limit",
     .help = "The most sessions that may be open (--max-sessions)",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.max_sessions); }},
    {.name = "gemmd_tensors",
     .help = "Resident tensors of all sessions",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.tensors); }},
    {.name = "gemmd_tensor_bytes",
     .labels = {"place"},
     .unit = "bytes",
     .help =
         "Bytes of resident tensors and of uploads in memory of the host, and of copies of tensors "
         "in memory of each GPU",
     .collect = CollectBytes},
    {.name = "gemmd_tensor_bytes_limit",
     .unit = "bytes",
     .help = "The most bytes that resident tensors and uploads may take in memory of the host "
             "(--tensor-bytes)",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.max_bytes); }},
    {.name = "gemmd_tensor_uploads",
     .help = "Uploads of tensors that are under way or wait for the client",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.uploads); }},
    {.name = "gemmd_tensor_uploads_total",
     .type = MetricType::kCounter,
     .labels = {"outcome"},
     .help =
         "Uploads of tensors that ended: complete, known (the session had the bytes, and nothing "
         "was sent) or mismatch (the bytes had another hash)",
     .collect = CollectUploads},
    {.name = "gemmd_tensor_uploads_resumed_total",
     .type = MetricType::kCounter,
     .help = "Uploads of tensors that were gone on with after all streams had broken",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.uploads_resumed); }},
    {.name = "gemmd_tensors_expired_total",
     .type = MetricType::kCounter,
     .help = "Tensors deleted because the lease or the session had ended",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.tensors_expired); }},
    {.name = "gemmd_tensors_lost_total",
     .type = MetricType::kCounter,
     .help = "Tensors lost because the only copy was on a GPU whose worker was replaced",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.tensors_lost); }},
    {.name = "gemmd_tensor_copies_total",
     .type = MetricType::kCounter,
     .labels = {"device", "event"},
     .help =
         "Copies of tensors in memory of a GPU that products needed: found there, made, evicted "
         "to make room for another one, or written_back to memory of the host for that",
     .collect = CollectCopies},
};

}  // namespace

absl::Span<const Metric> TensorMetrics() { return kTensorMetrics; }

}  // namespace gemmd
