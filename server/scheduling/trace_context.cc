// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/trace_context.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/text.h"

namespace gemmd {
namespace {

// A traceparent has version, trace, parent and flags, with hyphens between them.
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

// Empty where the system gives no random bytes: no number is better than one that others have.
std::string NewSpanId() {
  std::array<unsigned char, kSpanDigits / 2> bytes = {};
  do {
    if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return "";
  } while (std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == 0; }));
  std::string id;
  for (const unsigned char byte : bytes) {
    id += kDigits[byte / 16];
    id += kDigits[byte % 16];
  }
  return id;
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

}  // namespace gemmd
