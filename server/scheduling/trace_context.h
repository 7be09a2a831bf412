// SPDX-License-Identifier: Apache-2.0
//
// W3C Trace Context: a caller's `traceparent`, and the daemon's own span in that trace, by which
// its log lines, its answer and its spans (span_export.h) can be found from the caller's trace.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gemmd {

inline constexpr char kTraceparentKey[] = "traceparent";

// The daemon's part of a trace.
struct TraceSpan {
  std::string trace_id;   // 32 lower-case hexadecimal digits.
  std::string parent_id;  // 16 digits: the caller's span; empty where the daemon began the trace.
  std::string span_id;    // 16 digits: this span.
  bool is_sampled = false;

  // What the answer says: the caller's trace and this span.
  std::string traceparent() const;
};

// A new span in the trace that `traceparent` names. Nothing where `traceparent` is invalid, which
// the recommendation treats as absent, or where there are no random numbers.
// Source: W3C Trace Context, section 3.2, versions 00 and later.
std::optional<TraceSpan> ContinueTrace(std::string_view traceparent);

// The first span of a new trace, which is sampled; nothing where there are no random numbers.
std::optional<TraceSpan> StartTrace();

// A new span within another span of the daemon; nothing where there are no random numbers.
std::optional<TraceSpan> ChildOf(const TraceSpan& parent);

}  // namespace gemmd
