// SPDX-License-Identifier: Apache-2.0
//
// Traces of products: the caller's, which a product continues, and the spans that the daemon
// writes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "server/system/files.h"

namespace gemmd {

// W3C Trace Context: a caller's `traceparent`, and the daemon's own span in that trace, by which
// its log lines, its answer and its spans can be found from the caller's trace.
struct Product;

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

// Spans of products for OpenTelemetry: a line of OTLP in JSON for each product, in a file that the
// collector's receiver `otlpjsonfile` follows.
//
// A product has a span of its own and, within it, one for each of its stages that took time, which
// begin one after the other: what of them overlapped is not known.
struct SpanOptions {
  std::string file;  // Empty: no spans are written.
  // The part of those products whose caller sends no trace that have spans all the same.
  double share = 0;
  int64_t max_bytes = LineFile::Options().max_bytes;
};

class SpanExport {
 public:
  // Null where no file is named. Errors: InvalidArgument where it cannot be opened.
  static absl::StatusOr<std::unique_ptr<SpanExport>> Open(const SpanOptions& options);

  // Writes the spans of a product whose caller's trace is sampled, or that is in the share.
  // Never waits. Threads: any.
  void Add(const Product& product);

  // Spans. Threads: any.
  LineFile::Counts counts() const { return file_->counts(); }

 private:
  SpanExport(std::unique_ptr<LineFile> file, double share)
      : share_(share), file_(std::move(file)) {}

  const double share_;
  const std::unique_ptr<LineFile> file_;
};

}  // namespace gemmd
