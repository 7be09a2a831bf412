// SPDX-License-Identifier: Apache-2.0
#include "server/device/result_lines.h"

#include <algorithm>

namespace gemmd {

bool HasGaps(const Job& job) {
  const MatrixLayout& d = job.problem.d;
  return d.leading_dimension != d.line_length() || job.d.line_stride(d) != d.line_stride_bytes() ||
         (job.problem.batch > 1 && d.batch_stride_bytes != d.lines() * d.line_stride_bytes());
}

void AppendLines(const Job& job, int64_t first, absl::Span<const std::byte> from,
                 std::vector<CopiedBytes>& copies) {
  const MatrixLayout& d = job.problem.d;
  const int64_t end = first + static_cast<int64_t>(from.size());
  const int64_t line_bytes = (d.line_length() * BitsOf(d.type) + 7) / 8;
  const int64_t stride = d.line_stride_bytes();
  if (line_bytes == 0) return;
  const int64_t matrix_bytes = d.batch_stride_bytes;
  for (int64_t i = matrix_bytes > 0 ? first / matrix_bytes : 0; i < job.problem.batch; ++i) {
    const int64_t matrix = i * matrix_bytes;
    if (matrix >= end) return;
    for (int64_t line = std::max<int64_t>(0, (first - matrix) / stride); line < d.lines(); ++line) {
      const int64_t at = matrix + line * stride;
      if (at >= end) break;
      const int64_t begin = std::max(at, first);
      const int64_t bytes = std::min(at + line_bytes, end) - begin;
      if (bytes <= 0) continue;
      copies.push_back({.to = job.d.memory + matrix + line * job.d.line_stride(d) + (begin - at),
                        .from = from.data() + (begin - first),
                        .bytes = static_cast<size_t>(bytes)});
    }
  }
}

}  // namespace gemmd
