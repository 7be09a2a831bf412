// SPDX-License-Identifier: Apache-2.0
//
// W3C Trace Context: a caller's `traceparent`, and the span that the daemon makes of it, so that
// its log lines and its answer can be found from the caller's trace. Nothing is exported.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gemmd {

inline constexpr char kTraceparentKey[] = "traceparent";

// The daemon's part of a trace.
struct TraceSpan {
  std::string trace_id;   // 32 lower-case hexadecimal digits.
  std::string parent_id;  // 16, of the caller's span.
  std::string span_id;    // 16, made here.
  bool is_sampled = false;

  // As the answer says it: the caller's trace, this span.
  std::string traceparent() const;
};

// A new span in the trace that `traceparent` names; nothing where it is invalid, which the
// recommendation wants treated as if it were not there, or where there are no random numbers.
// Source: W3C Trace Context, section 3.2, versions 00 and later.
std::optional<TraceSpan> ContinueTrace(std::string_view traceparent);

// A new span within another of the daemon's; nothing where there are no random numbers.
std::optional<TraceSpan> ChildOf(const TraceSpan& parent);

}  // namespace gemmd
