// SPDX-License-Identifier: Apache-2.0
//
// Spans of products for OpenTelemetry: a line of OTLP in JSON for each product, in a file that the
// collector's receiver `otlpjsonfile` follows.
//
// A product has a span of its own and, within it, one for each of its stages that took time, which
// begin one after the other: what of them overlapped is not known.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/scheduling/product.h"
#include "server/system/line_file.h"

namespace gemmd {

struct SpanOptions {
  std::string file;  // Empty: no spans are written.
  // The part of those products whose caller sends no trace that have spans all the same.
  double share = 0;
  int64_t most_bytes = LineFile::Options().most_bytes;
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
