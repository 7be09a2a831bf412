// SPDX-License-Identifier: Apache-2.0
#include "server/product/product.h"

#include <string>

#include "kernels/matrix/text.h"
#include "server/system/log.h"
#include "server/system/sockets.h"

namespace gemmd {

FlowId Arrival::flow() const {
  return {.caller = caller != nullptr ? caller->name : HostOf(peer()), .connection = connection};
}

void Product::WaitAgain() {
  is_doubtful = false;
  // GCC 12 takes an assignment for a read of uninitialised memory.
  std::destroy_at(&own_launch);
  std::construct_at(&own_launch);
  launch = nullptr;
  end = absl::OkStatus();
}

namespace {

// " trace_id=... span_id=... parent_id=...", or empty if the caller has no trace.
std::string TraceFields(const std::optional<TraceSpan>& span) {
  if (!span) return "";
  return Concat(" trace_id=", LogValue(span->trace_id), " span_id=", LogValue(span->span_id),
                " parent_id=", LogValue(span->parent_id));
}

// Whether the operator must see it at once, because the caller can do nothing about it.
bool IsFailure(absl::StatusCode code) {
  return code == absl::StatusCode::kAborted || code == absl::StatusCode::kDataLoss ||
         code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kUnknown;
}

std::string NameOf(const Arrival& arrival) {
  return LogValue(arrival.caller == nullptr ? "" : arrival.caller->name);
}

void Audit(const Product& product) {
  const std::shared_ptr<spdlog::logger> log = AuditLog();
  if (log == nullptr) return;
  const bool is_dropped = product.launch == nullptr && !product.outcome.status.ok();
  log->info(
      "event={} identity={} peer={} method={} id={} problem={} kernel={} device={} bytes={} "
      "status={}",
      is_dropped ? "product_dropped" : "product", NameOf(product.arrival),
      LogValue(product.arrival.peer()), LogValue(product.arrival.method),
      LogValue(product.arrival.request_id), LogValue(Describe(product.job.problem)),
      LogValue(product.kernel().name), LogValue(product.device_name()),
      BytesRead(product.job.problem) + BytesWritten(product.job.problem),
      absl::StatusCodeToString(product.outcome.status.code()));
}

}  // namespace

void LogRefusal(const Arrival& arrival, const absl::Status& status) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  spdlog::debug("event=refusal id={} status={} reason={} peer={}{}", LogValue(arrival.request_id),
                absl::StatusCodeToString(status.code()), LogValue(std::string(status.message())),
                LogValue(arrival.peer()), TraceFields(arrival.span));
}

void LogRefusal(const Arrival& arrival, int64_t bytes, const absl::Status& status) {
  LogRefusal(arrival, status);
  const std::shared_ptr<spdlog::logger> log = AuditLog();
  if (log == nullptr) return;
  log->info("event=product_refused identity={} peer={} method={} id={} bytes={} status={}",
            NameOf(arrival), LogValue(arrival.peer()), LogValue(arrival.method),
            LogValue(arrival.request_id), bytes, absl::StatusCodeToString(status.code()));
}

void LogProduct(const Product& product) {
  Audit(product);
  const JobOutcome& outcome = product.outcome;
  const auto level = IsFailure(outcome.status.code()) ? spdlog::level::warn : spdlog::level::debug;
  if (!spdlog::should_log(level)) return;
  const Arrival& arrival = product.arrival;
  spdlog::log(level,
              "event=request id={} problem={} kernel={} device={} status={} reason={} queue_ns={} "
              "copy_in_ns={} compute_ns={} copy_out_ns={} total_ns={} peer={}{}",
              LogValue(arrival.request_id), LogValue(Describe(product.job.problem)),
              product.kernel().name, product.device_name(),
              absl::StatusCodeToString(outcome.status.code()),
              LogValue(std::string(outcome.status.message())), product.queue_ns, outcome.copy_in_ns,
              outcome.compute_ns, outcome.copy_out_ns, product.timing.total_ns,
              LogValue(arrival.peer()), TraceFields(arrival.span));
}

}  // namespace gemmd
