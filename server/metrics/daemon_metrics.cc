// SPDX-License-Identifier: Apache-2.0
//
// The metrics of the daemon as a whole: admission, and what was admitted.
#include "server/metrics/metric.h"
#include "server/system/version.h"

namespace gemmd {
namespace {

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
  samples.Add({"peer"}, now.connections.refused_of_peer);
  samples.Add({"open_files"}, now.connections.refused_for_files);
}

void CollectCertificateLoads(const Snapshot& now, Samples& samples) {
  samples.Add({"loaded"}, now.certificate.loads);
  samples.Add({"refused"}, now.certificate.refusals);
}

// Those that there are, without that of no check.
void CollectVerifications(const Snapshot& now, Samples& samples) {
  for (size_t mode = 1; mode < kVerifyModes; ++mode) {
    for (size_t end = 0; end < kVerifyEnds; ++end) {
      samples.Add({NameOf(static_cast<VerifyMode>(mode)), NameOf(static_cast<VerifyEnd>(end))},
                  now.verifications[mode].ends[end]);
    }
  }
}

// A sum of each way to check.
template <double (*kSum)(const VerifyTotals&)>
void CollectOfModes(const Snapshot& now, Samples& samples) {
  for (size_t mode = 1; mode < kVerifyModes; ++mode) {
    samples.Add({NameOf(static_cast<VerifyMode>(mode))}, kSum(now.verifications[mode]));
  }
}
double VerifySeconds(const VerifyTotals& totals) {
  return static_cast<double>(totals.took_ns) / 1e9;
}
double MissProbability(const VerifyTotals& totals) { return totals.miss_probability; }
double VerifyCost(const VerifyTotals& totals) { return totals.cost; }

void CollectSpans(const Snapshot& now, Samples& samples) {
  samples.Add({"written"}, now.spans.written);
  samples.Add({"lost"}, now.spans.lost);
}

// Those that were called: most daemons are asked for a few methods alone, and each has 27 series.
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
    samples.Add({NameOf(static_cast<Handler>(i))},
                static_cast<double>(now.handlers_cpu[i].*time) / 1e9);
  }
}

constexpr Metric kDaemonMetrics[] = {
    {.name = "gemmd_build_info",
     .labels = {"version", "commit", "grpc", "protobuf"},
     .help =
         "1; labels tell the version and the commit of the daemon, and the versions of gRPC and "
         "protobuf",
     .collect =
         [](const Snapshot&, Samples& s) {
           s.Add({kVersion, kCommit, kGrpcVersion, kProtobufVersion}, 1.0);
         }},
    {.name = "gemmd_draining",
     .help = "1 while the daemon ends and refuses new products, otherwise 0",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.is_draining ? 1.0 : 0.0); }},
    {.name = "gemmd_admissions_total",
     .type = MetricType::kCounter,
     .help = "Products admitted",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.admission.admitted); }},
    {.name = "gemmd_refusals_total",
     .type = MetricType::kCounter,
     .labels = {"reason"},
     .help =
         "Products refused: queue_requests or queue_bytes (the queue has no room now), "
         "draining, memory (the process has little left), invalid, not_found (kernel or device), "
         "unsupported (by every kernel), "
         "too_large (at any time), not_ready (the device), internal, too_long "
         "(--max-product-seconds), deadline (too short for the product), backlog (too much waits "
         "ahead of the product), share (the caller has too many of the places); messages that "
         "gRPC refuses before the daemon reads a field are not counted",
     .collect = CollectRefusals},
    {.name = "gemmd_admitted_requests",
     .help = "Products admitted and not yet answered",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.admission.requests); }},
    {.name = "gemmd_admitted_requests_limit",
     .help = "The most products that may be admitted and not yet answered "
             "(--max-queued-requests)",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.limits.max_requests); }},
    {.name = "gemmd_silent_calls_total",
     .type = MetricType::kCounter,
     .help = "Calls ended because clients read nothing of an answer for too long (--send-timeout)",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.silent_calls); }},
    {.name = "gemmd_memory_pressure",
     .help = "0 while resident memory, with that of workers, is below 85 % of "
             "--memory-limit-bytes; 1 from 85 %, when large products are refused; 2 from 92 %, "
             "when all products and most other calls are refused; 3 from 95 %, when calls with "
             "unread answers are ended",
     .collect = [](const Snapshot& now,
                   Samples& s) { s.Add({}, static_cast<int64_t>(now.admission.pressure)); }},
    {.name = "gemmd_memory_pressure_changes_total",
     .type = MetricType::kCounter,
     .labels = {"level"},
     .help = "How often gemmd_memory_pressure has become 0 (none), 1 (high), 2 (severe) or 3 "
             "(critical); the log has a line for each change",
     .collect = CollectPressureChanges},
    {.name = "gemmd_admitted_bytes",
     .unit = "bytes",
     .help = "Bytes of products whose answer has not left: messages, results and scratch memory",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.admission.bytes); }},
    {.name = "gemmd_admitted_bytes_limit",
     .unit = "bytes",
     .help = "The most bytes that messages, results and scratch memory may take "
             "(--max-queued-bytes)",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.limits.max_bytes); }},
    {.name = "gemmd_connections",
     .help = "Connections that are open, without connections to the metrics",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.connections.open); }},
    {.name = "gemmd_connections_limit",
     .labels = {"scope"},
     .help = "The most connections that may be open: of all peers (--max-connections) and of one "
             "peer (--max-connections-per-peer)",
     .collect = CollectConnectionLimits},
    {.name = "gemmd_connections_accepted_total",
     .type = MetricType::kCounter,
     .help = "Connections accepted",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.connections.accepted); }},
    {.name = "gemmd_connections_refused_total",
     .type = MetricType::kCounter,
     .labels = {"reason"},
     .help = "Connections closed at once: connections (as many as --max-connections are open), "
             "peer (as many as --max-connections-per-peer are open of one peer), open_files (no "
             "file descriptor was left)",
     .collect = CollectRefusedConnections},
    {.name = "gemmd_tls_certificate_not_after_timestamp_seconds",
     .unit = "seconds",
     .help = "When the certificate of --tls-cert ends, in seconds since 1970; 0 without TLS",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.certificate.not_after_s); }},
    {.name = "gemmd_tls_certificate_loads_total",
     .type = MetricType::kCounter,
     .labels = {"outcome"},
     .help =
         "Times that files of certificates were read: loaded, at the start and after changes, or "
         "refused because the content makes no sense, so that the certificate of before stays",
     .collect = CollectCertificateLoads},
    {.name = "gemmd_verifications_total",
     .type = MetricType::kCounter,
     .labels = {"mode", "outcome"},
     .help =
         "Checks of answers: passed, failed (a wrong answer was not given), or not_verified "
         "(nothing could be said, or a tensor of the product was overwritten or could not be read)",
     .collect = CollectVerifications},
    {.name = "gemmd_verification_seconds_total",
     .type = MetricType::kCounter,
     .labels = {"mode"},
     .unit = "seconds",
     .help = "Time from the end of a product to the end of the check of the answer",
     .collect = CollectOfModes<VerifySeconds>},
    {.name = "gemmd_verification_miss_probability_total",
     .type = MetricType::kCounter,
     .labels = {"mode"},
     .help = "Sum, over answers whose check passed, of the probability that the check would not "
             "have seen one wrong element",
     .collect = CollectOfModes<MissProbability>},
    {.name = "gemmd_verification_cost_total",
     .type = MetricType::kCounter,
     .labels = {"mode"},
     .help = "Sum, over answers whose check passed, of the operations of the check divided by "
             "the operations of the product",
     .collect = CollectOfModes<VerifyCost>},
    {.name = "gemmd_log_lines_lost_total",
     .type = MetricType::kCounter,
     .help = "Lines of the log that were lost because the reader was too slow or had gone",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.log.lost); }},
    {.name = "gemmd_audit_lines_lost_total",
     .type = MetricType::kCounter,
     .help =
         "Lines of the audit log that were lost: beyond --audit-lines-per-second, or because the "
         "file took no more, as on a full disk",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.log.audit_lost); }},
    {.name = "gemmd_log_lines_suppressed_total",
     .type = MetricType::kCounter,
     .help = "Warnings and errors that were too many of one kind to be logged; the log tells how "
             "many of each kind",
     .collect = [](const Snapshot& now, Samples& s) { s.Add({}, now.log.suppressed); }},
    {.name = "gemmd_trace_spans_total",
     .type = MetricType::kCounter,
     .labels = {"outcome"},
     .help = "Spans of sampled products: written to the file of --traces, or lost because too many "
             "waited or the file could not be written",
     .collect = CollectSpans},
    {.name = "gemmd_handler_seconds",
     .type = MetricType::kHistogram,
     .labels = {"method"},
     .unit = "seconds",
     .help = "Time for which a call holds a thread of gRPC, so that no other call has the thread: "
             "the code of the method, with the parsing of a unary product; each message and the "
             "end of a call count too. A method that was never called has no series",
     .collect = CollectHandlers},
    {.name = "gemmd_handler_longest_cpu_seconds",
     .type = MetricType::kGauge,
     .labels = {"method"},
     .unit = "seconds",
     .help = "Longest processor time that a call has held a thread of gRPC for since the start, "
             "which other work on the machine does not lengthen",
     .collect = CollectHandlersCpu<&HandlerTimes::Longest::first_ns>},
    {.name = "gemmd_handler_second_longest_cpu_seconds",
     .type = MetricType::kGauge,
     .labels = {"method"},
     .unit = "seconds",
     .help = "Second longest of the same times: the longest may be the machine's, such as a page "
             "of memory for which a virtual machine waits",
     .collect = CollectHandlersCpu<&HandlerTimes::Longest::second_ns>},
};

}  // namespace

absl::Span<const Metric> DaemonMetrics() { return kDaemonMetrics; }
std::vector<absl::Span<const Metric>> OwnMetrics() {
  return {DaemonMetrics(), CallerMetrics(), DeviceMetrics(),
          GpuMetrics(),    TensorMetrics(), ProcessMetrics()};
}

}  // namespace gemmd
