// SPDX-License-Identifier: Apache-2.0
//
// Traces of products: the caller's trace, which a product continues, and the spans that the daemon
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

// W3C Trace Context: a caller's `traceparent`, and the daemon's own span in that trace, through
// which its log lines, answers and spans can be found.
struct Product;

inline constexpr char kTraceparentKey[] = "traceparent";

// A span of the daemon within a trace.
struct TraceSpan {
  std::string trace_id;   // 32 lower-case hexadecimal digits.
  std::string parent_id;  // 16 digits: the caller's span; empty if the daemon started the trace.
  std::string span_id;    // 16 digits: this span.
  bool is_sampled = false;

  // The `traceparent` of the answer: the trace and this span.
  std::string traceparent() const;
};

// A new span in the trace that `traceparent` names; nullopt if `traceparent` is invalid, which the
// recommendation treats as absent, or if no random bytes are available. Source: W3C Trace Context,
// section 3.2, versions 00 and later.
std::optional<TraceSpan> ContinueTrace(std::string_view traceparent);

// The first span of a new trace, which is sampled; nullopt if no random bytes are available.
std::optional<TraceSpan> StartTrace();

// A new span within another span of the daemon; nullopt if no random bytes are available.
std::optional<TraceSpan> ChildOf(const TraceSpan& parent);

// Writes spans of products for OpenTelemetry: one line of OTLP in JSON per product, to a file that
// the collector's receiver `otlpjsonfile` follows.
//
// A product has a span of its own and, within it, one for each stage that took time. Stages are
// written as following one another: how they overlapped is not known.
struct SpanOptions {
  std::string file;  // Empty: no spans are written.
  // The share of products without a caller's trace that get spans all the same.
  double share = 0;
  int64_t max_bytes = LineFile::Options().max_bytes;
};

class SpanExport {
 public:
  // Null if no file is named. Errors: InvalidArgument if the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<SpanExport>> Open(const SpanOptions& options);

  // Writes the spans of a product whose caller's trace is sampled, or that falls into the share.
  // Never waits. Threads: any.
  void Add(const Product& product);

  // As LineFile::Reopen.
  void Reopen() { file_->Reopen(); }

  // Counts of spans. Threads: any.
  LineFile::Counts counts() const { return file_->counts(); }

 private:
  SpanExport(std::unique_ptr<LineFile> file, double share)
      : share_(share), file_(std::move(file)) {}

  const double share_;
  const std::unique_ptr<LineFile> file_;
};

}  // namespace gemmd
