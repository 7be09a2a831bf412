// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metric.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "server/product/counts.h"
#include "server/system/resources.h"
#include "server/system/version.h"

namespace gemmd {

namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

// A member, or a member of a member: Get<&DeviceSnapshot::load, &DeviceLoad::aborts>(device).
template <auto kMember, auto... kWithin, typename Whole>
const auto& Get(const Whole& whole) {
  if constexpr (std::is_pointer_v<Whole>) {
    return Get<kMember, kWithin...>(*whole);
  } else if constexpr (sizeof...(kWithin) == 0) {
    return whole.*kMember;
  } else {
    return Get<kWithin...>(whole.*kMember);
  }
}

void CollectRefusals(const Snapshot& now, Samples& samples) {
  for (const RefusalCount& refusal : RefusalCounts(now)) {
    samples.Add({refusal.reason}, refusal.count);
  }
}

void CollectPressureChanges(const Snapshot& now, Samples& samples) {
  for (size_t level = 0; level < kPressures; ++level) {
    samples.Add({NameOf(static_cast<Pressure>(level))}, now.admission.pressure_changes[level]);
  }
}

void CollectConnectionLimits(const Snapshot& now, Samples& samples) {
  samples.Add({"all"}, now.connections.limit);
  samples.Add({"peer"}, now.connections.limit_of_peer);
}

void CollectRefusedConnections(const Snapshot& now, Samples& samples) {
  samples.Add({"connections"}, now.connections.refused_of_all);
  samples.Add({"peer"}, now.connections.refused_of_peer + now.connections.refused_for_rate);
  samples.Add({"open_files"}, now.connections.refused_for_files);
}

void CollectClosedConnections(const Snapshot& now, Samples& samples) {
  samples.Add({"frames"}, now.connections.closed_for_frames);
  samples.Add({"slow"}, now.connections.closed_stalled + now.connections.closed_unread);
}

void CollectCertificateLoads(const Snapshot& now, Samples& samples) {
  samples.Add({"loaded"}, now.certificate.loads);
  samples.Add({"refused"}, now.certificate.refusals);
}

// All modes except none.
void CollectVerifications(const Snapshot& now, Samples& samples) {
  for (size_t mode = 1; mode < kVerifyModes; ++mode) {
    for (size_t end = 0; end < kVerifyEnds; ++end) {
      samples.Add({NameOf(static_cast<VerifyMode>(mode)), NameOf(static_cast<VerifyEnd>(end))},
                  now.verifications[mode].ends[end]);
    }
  }
}

// A sum for each mode except none.
template <auto kSum>
void CollectOfModes(const Snapshot& now, Samples& samples) {
  for (size_t mode = 1; mode < kVerifyModes; ++mode) {
    const VerifyTotals& totals = now.verifications[mode];
    samples.Add({NameOf(static_cast<VerifyMode>(mode))}, std::invoke(kSum, totals));
  }
}

double TookSeconds(const VerifyTotals& totals) { return Seconds(totals.took_ns); }

void CollectSpans(const Snapshot& now, Samples& samples) {
  samples.Add({"written"}, now.spans.written);
  samples.Add({"lost"}, now.spans.lost);
}

// Only methods that were called: most daemons serve only a few methods, and each has 27 series.
void CollectHandlers(const Snapshot& now, Samples& samples) {
  for (size_t i = 0; i < kHandlers; ++i) {
    if (now.handlers[i].count() == 0) continue;
    samples.Add({NameOf(static_cast<Handler>(i))}, now.handlers[i]);
  }
}

template <int64_t HandlerTimes::Longest::*time>
void CollectHandlersCpu(const Snapshot& now, Samples& samples) {
  for (size_t i = 0; i < kHandlers; ++i) {
    if (now.handlers[i].count() == 0) continue;
    samples.Add({NameOf(static_cast<Handler>(i))}, Seconds(now.handlers_cpu[i].*time));
  }
}

// The metrics of the daemon as a whole: admission, and admitted products.
constexpr Metric kDaemonMetrics[] = {
    {"gemmd_build_info{version,commit,grpc,protobuf}",
     "1; the labels are the version and the commit of the daemon, and the versions of gRPC and "
     "protobuf",
     [](const Snapshot&, Samples& s) {
       s.Add({kVersion, kCommit, kGrpcVersion, kProtobufVersion}, 1.0);
     }},
    {"gemmd_draining", "1 while the daemon drains and refuses new products, otherwise 0",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.is_draining); }},
    {"gemmd_admissions_total", "Products admitted",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.admission.admitted); }},
    {"gemmd_refusals_total{reason}",
     "Products refused: queue_requests or queue_bytes (the queue has no room now), draining, "
     "memory (the process is short of memory), invalid, not_found (kernel or device), unsupported "
     "(by every kernel), too_large (at any time), not_ready (the device), internal, too_long "
     "(--max-product-seconds), deadline (too short for the product), backlog (too much work is "
     "ahead of the product), share (the caller has its share of the queue), kernel_refused (the "
     "kernel ended workers of the device); without messages that gRPC refuses before the daemon "
     "reads them",
     CollectRefusals},
    {"gemmd_admitted_requests", "Products admitted and not yet answered",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.admission.requests); }},
    {"gemmd_admitted_requests_limit",
     "Max products that are admitted and not yet answered (--max-queued-requests)",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.limits.max_requests); }},
    {"gemmd_silent_calls_total",
     "Calls ended because the client did not read the answer for too long (--send-timeout)",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.silent_calls); }},
    {"gemmd_memory_pressure",
     "0 while resident memory, with that of workers, is below 85 % of --memory-limit-bytes; 1 "
     "from 85 %, when large products are refused; 2 from 92 %, when all products and most other "
     "calls are refused; 3 from 95 %, when calls with unread answers are ended",
     [](const Snapshot& now, Samples& s) {
       s.Add({}, static_cast<int64_t>(now.admission.pressure));
     }},
    {"gemmd_memory_pressure_changes_total{level}",
     "Number of times that gemmd_memory_pressure became 0 (none), 1 (high), 2 (severe) or 3 "
     "(critical); the log has a line for each change",
     CollectPressureChanges},
    {"gemmd_admitted_bytes",
     "Bytes of products whose answer is not sent yet: messages, results and scratch memory",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.admission.bytes); }},
    {"gemmd_admitted_bytes_limit",
     "Max bytes of messages, results and scratch memory (--max-queued-bytes)",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.limits.max_bytes); }},
    {"gemmd_connections", "Open connections, without connections to the metrics",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.connections.open); }},
    {"gemmd_connections_limit{scope}",
     "Max open connections: of all peers (--max-connections) and of one peer (half of them)",
     CollectConnectionLimits},
    {"gemmd_connections_accepted_total", "Connections accepted",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.connections.accepted); }},
    {"gemmd_connections_refused_total{reason}",
     "Connections closed at once: connections (--max-connections are open), peer (the peer has "
     "half as many open, or has begun more than 1,000 in a second), open_files (no file "
     "descriptor was left)",
     CollectRefusedConnections},
    {"gemmd_connections_closed_total{reason}",
     "Connections closed because of what the peer did: frames (its frames cost more memory or "
     "time than their bytes), slow (it held back the rest of a message, or read its answers too "
     "slowly)",
     CollectClosedConnections},
    {"gemmd_tls_certificate_not_after_timestamp_seconds",
     "Expiry of the certificate of --tls-cert, in seconds since 1970; 0 without TLS",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.certificate.not_after_s); }},
    {"gemmd_tls_certificate_loads_total{outcome}",
     "Reads of the certificate files: loaded, at the start and after changes, or refused because "
     "the content is invalid, so that the previous certificate stays",
     CollectCertificateLoads},
    {"gemmd_verifications_total{mode,outcome}",
     "Checks of answers: passed, failed (the answer was wrong and was not sent), or not_verified "
     "(the check was inconclusive, or a tensor of the product was overwritten or could not be "
     "read)",
     CollectVerifications},
    {"gemmd_verification_seconds_total{mode}",
     "Time from the end of a product to the end of the check of the answer",
     CollectOfModes<TookSeconds>},
    {"gemmd_verification_miss_probability_total{mode}",
     "Sum, over answers whose check passed, of the probability that the check would not have seen "
     "one wrong element",
     CollectOfModes<&VerifyTotals::miss_probability>},
    {"gemmd_verification_cost_total{mode}",
     "Sum, over answers whose check passed, of the operations of the check divided by the "
     "operations of the product",
     CollectOfModes<&VerifyTotals::cost>},
    {"gemmd_log_lines_lost_total",
     "Lines of the log that were lost because the reader was too slow or was gone",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.log.lost); }},
    {"gemmd_audit_lines_lost_total",
     "Lines of the audit log that were lost because the file could not be written, as on a full "
     "disk",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.log.audit_lost); }},
    {"gemmd_log_lines_suppressed_total",
     "Warnings and errors not logged because there were too many of one kind; the log has the "
     "number of each kind",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.log.suppressed); }},
    {"gemmd_trace_spans_total{outcome}",
     "Spans of sampled products: written to the file of --traces, or lost because too many were "
     "waiting or the file could not be written",
     CollectSpans},
    {"gemmd_handler_seconds{method}",
     "Time for which a call holds a thread of gRPC, so that other calls cannot use the thread: "
     "the code of the method, including the parsing of a unary product; each message and the end "
     "of a call also count. A method that was never called has no series",
     CollectHandlers, MetricType::kHistogram},
    {"gemmd_handler_longest_cpu_seconds{method}",
     "Longest processor time for which a call held a thread of gRPC since the start; other work "
     "on the machine does not affect it",
     CollectHandlersCpu<&HandlerTimes::Longest::first_ns>},
    {"gemmd_handler_second_longest_cpu_seconds{method}",
     "Second longest of the same times: the longest may be caused by the machine, such as a "
     "virtual machine that waits for a page of memory",
     CollectHandlersCpu<&HandlerTimes::Longest::second_ns>},
};

void CollectProducts(const Snapshot& now, Samples& samples) {
  for (const RuleUse::Totals& caller : now.callers) {
    samples.Add({caller.rule, "answered"}, caller.answered);
    samples.Add({caller.rule, "failed"}, caller.failed);
    samples.Add({caller.rule, "refused"}, caller.refused);
  }
}

void CollectCompute(const Snapshot& now, Samples& samples) {
  for (const RuleUse::Totals& caller : now.callers) {
    samples.Add({caller.rule}, Seconds(caller.compute_ns));
  }
}

void CollectTensors(const Snapshot& now, Samples& samples) {
  for (const RuleUse::Totals& caller : now.callers) {
    const auto found = now.tensors.bytes_of_rules.find(caller.rule);
    samples.Add({caller.rule},
                found == now.tensors.bytes_of_rules.end() ? int64_t{0} : found->second);
  }
}

void CollectSignedTokens(const Snapshot& now, Samples& samples) {
  samples.Add({"good"}, now.signed_tokens.good);
  samples.Add({"bad"}, now.signed_tokens.bad);
  samples.Add({"unexamined"}, now.signed_tokens.unexamined);
}

// The metrics of callers, by the rule that matches each caller (--rules): the number of callers
// that match a pattern is unlimited, the number of rules is not.
constexpr Metric kCallerMetrics[] = {
    {"gemmd_caller_products_total{rule,outcome}",
     "Products of the callers of a rule (--rules): answered, failed after admission, or refused; "
     "a rule without callers has no series, and rules beyond the first 48 share one",
     CollectProducts},
    {"gemmd_caller_compute_seconds_total{rule}",
     "Time for which devices computed answered products of the callers of a rule (--rules)",
     CollectCompute},
    {"gemmd_caller_tensor_bytes{rule}",
     "Bytes of resident tensors and of uploads that the callers of a rule own (--rules)",
     CollectTensors},
    {"gemmd_signed_tokens_total{outcome}",
     "Signed tokens (--jwt-keys) that the daemon did not remember as good: examined and good, "
     "examined and bad, or refused unexamined because too many before them were bad",
     CollectSignedTokens},
};

// Adds a member of each device.
template <auto... kMember>
void OfEach(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    samples.Add({device.info->name}, Get<kMember...>(device));
  }
}

template <auto... kNs>
void SecondsOfEach(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    samples.Add({device.info->name}, Seconds(Get<kNs...>(device)));
  }
}

// Adds a member of each GPU. Other devices have no such number, and a 0 would be misleading.
template <auto... kMember>
void OfEachGpu(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    if (device.info->kind != DeviceKind::kCuda) continue;
    samples.Add({device.info->name}, Get<kMember...>(device));
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
    // Every code has a sample from the start: a rate needs the 0 before the first ended product.
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

static_assert(Stats::kMaxKernels == 48, "as the help below says");

// The metrics of devices, their queues and workers, and the kernels that ran on them. The values of
// the label `device` are the served devices, those of `kernel` the first kernels that ran
// (Stats::kMaxKernels): callers cannot add values to either.
constexpr Metric kDeviceMetrics[] = {
    {"gemmd_products_total{device,code}",
     "Admitted products that have ended, by gRPC's status; CANCELLED and DEADLINE_EXCEEDED were "
     "dropped from the queue or aborted on the device",
     CollectEnds},
    {"gemmd_product_duration_seconds{device_kind}",
     "Duration of products that are OK, from the arrival of the last byte to the answer",
     CollectDurations, MetricType::kHistogram},
    {"gemmd_product_stage_duration_seconds{stage,device_kind}",
     "Duration of each stage of products that are OK: receive, queue, copy_in, compute, copy_out, "
     "send_prepare",
     CollectStages, MetricType::kHistogram},
    {"gemmd_kernel_products_total{device_kind,kernel}",
     "Products that are OK, by kernel; the first 48 kernels that run are named, all others are "
     "called other",
     CollectKernelProducts},
    {"gemmd_kernel_compute_seconds_total{device_kind,kernel}",
     "Time that kernels ran for products that are OK, counted once for products of one launch, "
     "with the names of gemmd_kernel_products_total",
     CollectKernelSeconds},
    {"gemmd_operations_total{device}", "Multiplications and additions of products that are OK",
     OfEach<&DeviceSnapshot::totals, &Stats::DeviceTotals::operations>},
    {"gemmd_operand_bytes_total{device}", "Bytes of the operands of products that are OK",
     OfEach<&DeviceSnapshot::totals, &Stats::DeviceTotals::bytes_read>},
    {"gemmd_result_bytes_total{device}", "Bytes of the results of products that are OK",
     OfEach<&DeviceSnapshot::totals, &Stats::DeviceTotals::bytes_written>},
    {"gemmd_device_busy_seconds_total{device}",
     "Time that the device had a product, from the launch to the end, with any status; includes "
     "the running product up to now",
     SecondsOfEach<&DeviceSnapshot::load, &DeviceLoad::busy_ns>},
    {"gemmd_abort_seconds{device}",
     "Time for which the device continued a product after it was cancelled or stopped, or its "
     "deadline passed",
     OfEach<&DeviceSnapshot::load, &DeviceLoad::aborts>, MetricType::kHistogram},
    {"gemmd_launches_total{device,products}",
     "Launches on the device, by number of products in the launch", CollectLaunches},
    {"gemmd_joined_products_total{device,how}",
     "Products of launches with more than one product: stacked, with one B for all, or batched, "
     "with one shape for all",
     CollectJoined},
    {"gemmd_queue_requests{device}", "Products that wait for the device",
     OfEach<&DeviceSnapshot::load, &DeviceLoad::queued_requests>},
    {"gemmd_queue_bytes{device}",
     "Bytes of operands and results of products that wait for the device",
     OfEach<&DeviceSnapshot::load, &DeviceLoad::queued_bytes>},
    {"gemmd_queue_predicted_seconds{device}",
     "Predicted time of the products that wait for the device and of the running one: the number "
     "to scale replicas by",
     SecondsOfEach<&DeviceSnapshot::load, &DeviceLoad::backlog_ns>},
    {"gemmd_device_info{device,device_kind,chip,description}", "1; the labels describe the device",
     CollectInfo},
    {"gemmd_device_ready{device}", "1 if the device takes products, otherwise 0",
     OfEach<&DeviceSnapshot::is_ready>},
    {"gemmd_device_memory_bytes{device}", "Memory in which the device computes",
     OfEach<&DeviceSnapshot::info, &DeviceInfo::memory_bytes>},
    {"gemmd_device_memory_limit_bytes{device}",
     "Memory of a GPU that products may use (--gpu-memory-bytes); other devices have no limit",
     OfEachGpu<&DeviceSnapshot::info, &DeviceInfo::memory_limit_bytes>},
    {"gemmd_device_staging_bytes{device}",
     "Memory of the host for the transfer of operands to a GPU; other devices have none",
     OfEachGpu<&DeviceSnapshot::condition, &DeviceCondition::staging_bytes>},
    {"gemmd_device_staging_used_bytes{device}",
     "Memory of the host that the running product of a GPU uses for operands and result; other "
     "devices have none",
     OfEachGpu<&DeviceSnapshot::condition, &DeviceCondition::staging_used_bytes>},
    {"gemmd_worker_restarts_total{device}", "Restarts of the worker process of the device",
     OfEach<&DeviceSnapshot::condition, &DeviceCondition::worker_restarts>},
    {"gemmd_canaries_total{device,result}",
     "Products with a known result that the device computed at the start and, on a GPU, from time "
     "to time: passed, failed",
     CollectCanaries},
};

template <auto kMember>
void OfEachReading(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    if (!device.gpu) continue;
    samples.Add({device.info->name, device.gpu->uuid}, device.gpu->reading.*kMember);
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

// The metrics of GPUs from NVML. Values that NVML does not report have no samples.
constexpr Metric kGpuMetrics[] = {
    {"gemmd_gpu_utilization_ratio{device,gpu_uuid}",
     "Share of the time in which a kernel ran on the GPU, 0 to 1; read once a second, like all "
     "metrics of gemmd_gpu_",
     OfEachReading<&GpuReading::utilization>},
    {"gemmd_gpu_memory_utilization_ratio{device,gpu_uuid}",
     "Share of the time in which the memory of the GPU was read or written, 0 to 1",
     OfEachReading<&GpuReading::memory_utilization>},
    {"gemmd_gpu_power_watts{device,gpu_uuid}", "Power that the GPU uses",
     OfEachReading<&GpuReading::power_watts>},
    {"gemmd_gpu_power_limit_watts{device,gpu_uuid}", "Power limit of the GPU",
     OfEachReading<&GpuReading::power_limit_watts>},
    {"gemmd_gpu_energy_joules_total{device,gpu_uuid}",
     "Energy that the GPU has used since the driver was loaded",
     OfEachReading<&GpuReading::energy_joules>},
    {"gemmd_gpu_memory_bytes{device,gpu_uuid}", "Memory of the GPU",
     OfEachReading<&GpuReading::memory_bytes>},
    {"gemmd_gpu_memory_used_bytes{device,gpu_uuid}", "Memory of the GPU in use by all processes",
     OfEachReading<&GpuReading::memory_used_bytes>},
    {"gemmd_gpu_clock_hertz{device,gpu_uuid,clock}",
     "Clock of the multiprocessors (sm) and of the memory (memory) of the GPU", CollectClocks},
    {"gemmd_gpu_temperature_celsius{device,gpu_uuid}", "Temperature of the GPU",
     OfEachReading<&GpuReading::temperature_celsius>},
    {"gemmd_gpu_ecc_errors_total{device,gpu_uuid,severity}",
     "Errors of the memory of the GPU since the driver was loaded: corrected, uncorrected",
     CollectEcc},
};

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

// The metrics of resident tensors. Sessions are not a label: clients could create any number of
// them.
constexpr Metric kTensorMetrics[] = {
    {"gemmd_sessions", "Sessions, which own resident tensors",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.sessions); }},
    {"gemmd_sessions_dropped_total", "Sessions that operators ended (gemmctl drop-session)",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.sessions_dropped); }},
    {"gemmd_sessions_limit", "Max open sessions (--max-sessions)",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.max_sessions); }},
    {"gemmd_tensors", "Resident tensors of all sessions",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.tensors); }},
    {"gemmd_tensor_bytes{place}",
     "Bytes of resident tensors and of uploads in memory of the host, and, in memory of each GPU, "
     "of copies of tensors and of forms that kernels derive from tensors",
     CollectBytes},
    {"gemmd_tensor_bytes_limit",
     "Max bytes of resident tensors and uploads in memory of the host (--tensor-bytes)",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.max_bytes); }},
    {"gemmd_tensor_uploads", "Uploads of tensors that are in progress or wait for the client",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.uploads); }},
    {"gemmd_tensor_uploads_total{outcome}",
     "Uploads of tensors that ended: complete, known (the session already had the bytes, and "
     "nothing was sent) or mismatch (the bytes had another hash)",
     CollectUploads},
    {"gemmd_tensor_uploads_resumed_total",
     "Uploads of tensors that were resumed after all streams had ended",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.uploads_resumed); }},
    {"gemmd_tensors_expired_total", "Tensors deleted because the lease or the session ended",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.tensors_expired); }},
    {"gemmd_tensors_lost_total",
     "Tensors lost because the only copy was on a GPU whose worker was replaced",
     [](const Snapshot& now, Samples& s) { s.Add({}, now.tensors.tensors_lost); }},
    {"gemmd_tensor_copies_total{device,event}",
     "Copies of tensors in memory of a GPU that products needed: found there, made, evicted to "
     "make room for another one, or written_back to memory of the host for that",
     CollectCopies},
};

// When the process started, in seconds since the machine's start. Source: proc(5): the program's
// name may contain anything; the first field after it is the third.
std::optional<double> StartSinceBoot() {
  constexpr int kStartTime = 22;  // In ticks.
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 3; i < kStartTime; ++i) fields >> skipped;
  int64_t ticks = 0;
  if (!(fields >> ticks)) return std::nullopt;
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double Seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::optional<double> CpuSeconds() {
  timespec used = {};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0) return std::nullopt;
  return Seconds(used);
}

// In seconds since 1970.
std::optional<double> ComputeStartSeconds() {
  const std::optional<double> start = StartSinceBoot();
  timespec wall = {};
  timespec since_boot = {};
  if (!start || clock_gettime(CLOCK_REALTIME, &wall) != 0 ||
      clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) {
    return std::nullopt;
  }
  return Seconds(wall) - Seconds(since_boot) + *start;
}

// Computed once: the two clocks drift apart and cannot be read at the same moment, and a start time
// that changes looks like a restart.
std::optional<double> StartSeconds() {
  static const std::optional<double> start = ComputeStartSeconds();
  return start;
}

std::optional<int64_t> OpenFiles() {
  std::error_code error;
  int64_t count = 0;
  // A range-based loop would throw from its ++.
  for (std::filesystem::directory_iterator file("/proc/self/fd", error), end; !error && file != end;
       file.increment(error)) {
    ++count;
  }
  if (error) return std::nullopt;
  return count - 1;  // One of the files is the open folder itself.
}

std::optional<int64_t> MaxOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

// The process metrics that every Prometheus client library has, under their common names.
constexpr Metric kProcessMetrics[] = {
    {"process_cpu_seconds_total",
     "Processor time that the daemon has used, without the workers of devices",
     [](const Snapshot&, Samples& s) { s.Add({}, CpuSeconds()); }},
    {"process_resident_memory_bytes", "Resident memory of the daemon",
     [](const Snapshot&, Samples& s) { s.Add({}, ResidentBytes()); }},
    {"process_open_fds", "Open files of the daemon",
     [](const Snapshot&, Samples& s) { s.Add({}, OpenFiles()); }},
    {"process_max_fds", "Max open files of the daemon",
     [](const Snapshot&, Samples& s) { s.Add({}, MaxOpenFiles()); }},
    {"process_start_time_seconds", "When the daemon started, in seconds since 1970",
     [](const Snapshot&, Samples& s) { s.Add({}, StartSeconds()); }},
};

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
  // Products with either status were dropped from the queue, or aborted.
  const int64_t dropped =
      Ends(now, absl::StatusCode::kDeadlineExceeded) + Ends(now, absl::StatusCode::kUnavailable);
  // Products that Triton would also refuse, because its queue is full or the time is too short.
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

template <auto... kMember>
void SumOfDevices(const Snapshot& now, Samples& samples) {
  int64_t sum = 0;
  for (const DeviceSnapshot& device : now.devices) {
    sum = SaturatingSum(sum, Get<kMember...>(device));
  }
  samples.Add({kModel, kModelVersion}, sum);
}

void CollectOk(const Snapshot& now, Samples& samples) {
  samples.Add({kModel, kModelVersion}, Ends(now, absl::StatusCode::kOk));
}

void CollectDurationSum(const Snapshot& now, Samples& samples) {
  int64_t sum_us = 0;
  for (const DeviceSnapshot& device : now.devices) {
    sum_us = SaturatingSum(sum_us, device.totals.total.sum_ns / 1000);
  }
  samples.Add({kModel, kModelVersion}, sum_us);
}

template <Stage kStage>
void SumOfStage(const Snapshot& now, Samples& samples) {
  int64_t sum_ns = 0;
  for (const Stats::KindTotals& kind : now.kinds) {
    sum_ns = SaturatingSum(sum_ns, kind.stages[static_cast<size_t>(kStage)].sum_ns);
  }
  samples.Add({kModel, kModelVersion}, sum_ns / 1000);
}

// Two GPUs without a UUID would have the same series.
bool HasUuid(const DeviceSnapshot& device) { return device.gpu && !device.gpu->uuid.empty(); }

template <auto kMember>
void OfEachGpuWithUuid(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    if (HasUuid(device)) samples.Add({device.gpu->uuid}, device.gpu->reading.*kMember);
  }
}

// The energy since the daemon's start, as in Triton.
void CollectEnergy(const Snapshot& now, Samples& samples) {
  for (const DeviceSnapshot& device : now.devices) {
    if (!HasUuid(device) || !device.gpu->reading.energy_joules) continue;
    if (!device.gpu->joules_at_start) continue;
    samples.Add({device.gpu->uuid},
                *device.gpu->reading.energy_joules - *device.gpu->joules_at_start);
  }
}

// The names of NVIDIA Triton Inference Server, for dashboards and autoscalers that know them. The
// daemon is one model, `gemm`, in one version; a product is a request, and a matrix of a batch is
// an inference. The names break Prometheus's rules for names, so they are on a separate path.
constexpr Metric kTritonMetrics[] = {
    {"nv_inference_request_success{model,version}", "Products that are OK", CollectOk,
     MetricType::kCounter},
    {"nv_inference_request_failure{model,version,reason}",
     "Products that are not OK: REJECTED (queue full, no time before the deadline, draining, "
     "dropped from the queue, aborted at the deadline), CANCELED, BACKEND (the device failed), "
     "OTHER (refused because the request is invalid)",
     CollectFailures, MetricType::kCounter},
    {"nv_inference_count{model,version}", "Matrices multiplied, counting each matrix of a batch",
     SumOfDevices<&DeviceSnapshot::totals, &Stats::DeviceTotals::matrices>, MetricType::kCounter},
    {"nv_inference_exec_count{model,version}", "Launches, counting a batch once", CollectOk,
     MetricType::kCounter},
    {"nv_inference_pending_request_count{model,version}", "Products that wait for a device",
     SumOfDevices<&DeviceSnapshot::load, &DeviceLoad::queued_requests>},
    {"nv_inference_request_duration_us{model,version}",
     "Sum of the durations of products that are OK", CollectDurationSum, MetricType::kCounter},
    {"nv_inference_queue_duration_us{model,version}",
     "Sum of the times for which products that are OK waited for the device",
     SumOfStage<Stage::kQueue>, MetricType::kCounter},
    {"nv_inference_compute_input_duration_us{model,version}",
     "Sum of the times in which operands were copied to the device", SumOfStage<Stage::kCopyIn>,
     MetricType::kCounter},
    {"nv_inference_compute_infer_duration_us{model,version}",
     "Sum of the times in which kernels ran", SumOfStage<Stage::kCompute>, MetricType::kCounter},
    {"nv_inference_compute_output_duration_us{model,version}",
     "Sum of the times in which results were copied from the device", SumOfStage<Stage::kCopyOut>,
     MetricType::kCounter},
    {"nv_gpu_utilization{gpu_uuid}",
     "Share of the time in which a kernel ran on the GPU, as gemmd_gpu_utilization_ratio",
     OfEachGpuWithUuid<&GpuReading::utilization>,
     {},
     "ratio"},
    {"nv_gpu_memory_total_bytes{gpu_uuid}", "Memory of the GPU, as gemmd_gpu_memory_bytes",
     OfEachGpuWithUuid<&GpuReading::memory_bytes>},
    {"nv_gpu_memory_used_bytes{gpu_uuid}",
     "Memory of the GPU in use by all processes, as gemmd_gpu_memory_used_bytes",
     OfEachGpuWithUuid<&GpuReading::memory_used_bytes>},
    {"nv_gpu_power_usage{gpu_uuid}",
     "Power that the GPU uses, as gemmd_gpu_power_watts",
     OfEachGpuWithUuid<&GpuReading::power_watts>,
     {},
     "watts"},
    {"nv_gpu_power_limit{gpu_uuid}",
     "Power limit of the GPU, as gemmd_gpu_power_limit_watts",
     OfEachGpuWithUuid<&GpuReading::power_limit_watts>,
     {},
     "watts"},
    {"nv_energy_consumption{gpu_uuid}", "Energy that the GPU has used since the daemon's start",
     CollectEnergy, MetricType::kCounter, "joules"},
};

}  // namespace

std::vector<absl::Span<const Metric>> OwnMetrics() {
  return {kDaemonMetrics, kCallerMetrics, kDeviceMetrics,
          kGpuMetrics,    kTensorMetrics, kProcessMetrics};
}

absl::Span<const Metric> TritonMetrics() { return kTritonMetrics; }

}  // namespace gemmd
