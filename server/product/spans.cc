// SPDX-License-Identifier: Apache-2.0
#include "server/product/spans.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/matrix/text.h"
#include "server/product/product.h"

namespace gemmd {

namespace {

// A traceparent consists of version, trace, parent and flags, separated by hyphens.
constexpr size_t kVersionDigits = 2;
constexpr size_t kTraceDigits = 32;
constexpr size_t kSpanDigits = 16;
constexpr size_t kFlagDigits = 2;
constexpr size_t kTraceAt = kVersionDigits + 1;
constexpr size_t kParentAt = kTraceAt + kTraceDigits + 1;
constexpr size_t kFlagsAt = kParentAt + kSpanDigits + 1;
constexpr size_t kLength = kFlagsAt + kFlagDigits;
constexpr std::string_view kDigits = "0123456789abcdef";

bool IsHex(std::string_view text) { return text.find_first_not_of(kDigits) == text.npos; }
bool IsZero(std::string_view text) { return text.find_first_not_of('0') == text.npos; }

bool IsValid(std::string_view text) {
  if (text.size() < kLength || text[kTraceAt - 1] != '-' || text[kParentAt - 1] != '-' ||
      text[kFlagsAt - 1] != '-') {
    return false;
  }
  const std::string_view version = text.substr(0, kVersionDigits);
  const std::string_view trace = text.substr(kTraceAt, kTraceDigits);
  const std::string_view parent = text.substr(kParentAt, kSpanDigits);
  if (!IsHex(version) || version == "ff" || !IsHex(trace) || IsZero(trace) || !IsHex(parent) ||
      IsZero(parent) || !IsHex(text.substr(kFlagsAt, kFlagDigits))) {
    return false;
  }
  // A later version may add fields; version 00 has no others.
  return text.size() == kLength || (version != "00" && text[kLength] == '-');
}

// Empty if the system gives no random bytes: no id is better than one that others use.
std::string NewSpanId() {
  std::array<unsigned char, kSpanDigits / 2> bytes = {};
  do {
    if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return "";
  } while (std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == 0; }));
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

std::string TraceSpan::traceparent() const {
  // The daemon knows no other flag, and clears the rest.
  return Concat("00-", trace_id, "-", span_id, is_sampled ? "-01" : "-00");
}

std::optional<TraceSpan> ContinueTrace(std::string_view traceparent) {
  if (!IsValid(traceparent)) return std::nullopt;
  const size_t flags = kDigits.find(traceparent[kFlagsAt + 1]);
  return ChildOf({.trace_id = std::string(traceparent.substr(kTraceAt, kTraceDigits)),
                  .parent_id = "",
                  .span_id = std::string(traceparent.substr(kParentAt, kSpanDigits)),
                  .is_sampled = flags % 2 == 1});
}

std::optional<TraceSpan> StartTrace() {
  const std::string high = NewSpanId();
  const std::string low = NewSpanId();
  std::string span_id = NewSpanId();
  if (high.empty() || low.empty() || span_id.empty()) return std::nullopt;
  return TraceSpan{
      .trace_id = high + low, .parent_id = "", .span_id = std::move(span_id), .is_sampled = true};
}

std::optional<TraceSpan> ChildOf(const TraceSpan& parent) {
  std::string span_id = NewSpanId();
  if (span_id.empty()) return std::nullopt;
  return TraceSpan{.trace_id = parent.trace_id,
                   .parent_id = parent.span_id,
                   .span_id = std::move(span_id),
                   .is_sampled = parent.is_sampled};
}

namespace {

using nlohmann::ordered_json;

// Values of Span.SpanKind and Status.StatusCode in opentelemetry.proto.trace.v1.
constexpr int kInternal = 1, kServer = 2;
constexpr int kError = 2;

// A copy of the product's data for its spans: the product has ended by the time they are written.
struct Told {
  TraceSpan span;
  int64_t end_unix_ns = 0;
  ProductTiming timing;
  std::string request_id;
  Problem problem;
  std::string kernel;
  std::string device;
  absl::Status status;
};

ordered_json Text(const char* key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

// In protobuf's JSON mapping, 64-bit integers are strings, and OTLP writes ids in hexadecimal.
ordered_json SpanJson(const TraceSpan& span, std::string name, int kind, int64_t start_ns,
                      int64_t end_ns) {
  ordered_json json = {{"traceId", span.trace_id}, {"spanId", span.span_id}};
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  json["name"] = std::move(name);
  json["kind"] = kind;
  json["startTimeUnixNano"] = absl::StrCat(start_ns);
  json["endTimeUnixNano"] = absl::StrCat(end_ns);
  return json;
}

ordered_json ProductSpan(const Told& told, int64_t start_ns) {
  ordered_json span = SpanJson(told.span, "Multiply", kServer, start_ns, told.end_unix_ns);
  span["attributes"] = {Text("rpc.system", "grpc"), Text("gemmd.problem", Describe(told.problem)),
                        Text("gemmd.kernel", told.kernel), Text("gemmd.device", told.device)};
  if (!told.request_id.empty()) {
    span["attributes"].push_back(Text("gemmd.request_id", told.request_id));
  }
  if (!told.status.ok()) {
    span["attributes"].push_back(
        Text("gemmd.status", absl::StatusCodeToString(told.status.code())));
    span["status"] = {{"code", kError}, {"message", std::string(told.status.message())}};
  }
  return span;
}

std::string Line(const Told& told) {
  const int64_t start_ns = told.end_unix_ns - told.timing.total_ns;
  ordered_json spans = {ProductSpan(told, start_ns)};
  int64_t at_ns = start_ns;
  for (size_t i = 0; i < kStages; ++i) {
    const auto stage = static_cast<Stage>(i);
    if (told.timing[stage] <= 0) continue;
    const int64_t end_ns = std::min(at_ns + told.timing[stage], told.end_unix_ns);
    if (const std::optional<TraceSpan> span = ChildOf(told.span)) {
      spans.push_back(SpanJson(*span, std::string(NameOf(stage)), kInternal, at_ns, end_ns));
    }
    at_ns = end_ns;
  }
  const ordered_json resource = {
      {"attributes", {Text("service.name", "gemmd"), Text("service.version", GEMMD_VERSION)}}};
  const ordered_json scope_spans = {{"scope", {{"name", "gemmd"}}}, {"spans", spans}};
  const ordered_json request = {
      {"resourceSpans",
       ordered_json::array({{{"resource", resource}, {"scopeSpans", {scope_spans}}}})}};
  return request.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Whether a new trace falls into the share. Depends only on the trace id, so all participants
// agree.
bool IsInShare(const TraceSpan& span, double share) {
  uint64_t low = 0;
  const char* const digits = span.trace_id.data();
  std::from_chars(digits + span.trace_id.size() / 2, digits + span.trace_id.size(), low, 16);
  return static_cast<double>(low >> 11) * 0x1p-53 < share;
}

// The span of a product, if it is to be written.
std::optional<TraceSpan> SampledSpan(const std::optional<TraceSpan>& callers, double share) {
  if (callers) return callers->is_sampled ? callers : std::nullopt;
  if (share <= 0) return std::nullopt;
  std::optional<TraceSpan> made = StartTrace();
  return made && IsInShare(*made, share) ? made : std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanExport>> SpanExport::Open(const SpanOptions& options) {
  if (options.file.empty()) return nullptr;
  auto file = LineFile::Open(options.file, {.max_bytes = options.max_bytes});
  if (!file.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("traces: ", file.status().message()));
  }
  return std::unique_ptr<SpanExport>(new SpanExport(*std::move(file), options.share));
}

void SpanExport::Add(const Product& product) {
  std::optional<TraceSpan> span = SampledSpan(product.arrival.span, share_);
  if (!span) return;
  const auto& stages = product.timing.stage_ns;
  const auto count =
      1 + std::count_if(stages.begin(), stages.end(), [](int64_t ns) { return ns > 0; });
  // The file's thread does the rest: this thread has other products to answer.
  Told told = {.span = *std::move(span),
               .end_unix_ns = absl::GetCurrentTimeNanos(),
               .timing = product.timing,
               .request_id = product.arrival.request_id,
               .problem = product.job.problem,
               .kernel = std::string(product.kernel().name),
               .device = product.device_name(),
               .status = product.outcome.status};
  file_->Add([told = std::move(told)]() { return Line(told); }, count);
}

}  // namespace gemmd
