// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/job_layout.h"

#include <algorithm>

#include "kernels/checked.h"
#include "kernels/status_macros.h"

namespace gemmd {
namespace {

// Puts one range after the other.
class Ranges {
 public:
  JobRange Take(Checked bytes) {
    const JobRange range = {end_.value().value_or(0), bytes.value().value_or(0)};
    const Checked padded = end_ + bytes + Checked(kJobAlignment - 1);
    end_ = padded.value() ? Checked(*padded.value() / kJobAlignment * kJobAlignment) : padded;
    return range;
  }
  std::optional<int64_t> end() const { return end_.value(); }

 private:
  Checked end_ = Checked(0);
};

int64_t Factors(ScaleKind kind, int64_t extent) {
  switch (kind) {
    case ScaleKind::kNone: return 0;
    case ScaleKind::kTensor: return 1;
    case ScaleKind::kVector: return extent;
  }
  return 0;
}

Checked FactorBytes(ScaleKind kind, int64_t extent) {
  return Checked(Factors(kind, extent)) * Checked(int64_t{sizeof(float)});
}

Checked BiasBytes(const Problem& problem) {
  switch (problem.bias_axis) {
    case BiasAxis::kNone: return 0;
    case BiasAxis::kRows: return PackedBytes(problem.bias_type, problem.m);
    case BiasAxis::kColumns: return PackedBytes(problem.bias_type, problem.n);
  }
  return 0;
}

}  // namespace

absl::StatusOr<JobLayout> LayOutJob(const Problem& problem) {
  ByteCount a;
  ByteCount b;
  ByteCount c;
  if (problem.has_product()) {
    ASSIGN_OR_RETURN(a, BytesOf("a", problem.a, problem.batch));
    ASSIGN_OR_RETURN(b, BytesOf("b", problem.b, problem.batch));
  }
  if (problem.has_c()) {
    ASSIGN_OR_RETURN(c, BytesOf("c", problem.c, problem.batch));
  }
  Ranges ranges;
  JobLayout layout;
  layout.a = ranges.Take(a.least);
  layout.b = ranges.Take(b.least);
  layout.c = ranges.Take(c.least);
  layout.bias = ranges.Take(BiasBytes(problem));
  layout.a_scale = ranges.Take(FactorBytes(problem.a_scale, problem.m));
  layout.b_scale = ranges.Take(FactorBytes(problem.b_scale, problem.n));
  layout.d = ranges.Take(BytesWritten(problem));
  if (!ranges.end()) return absl::ResourceExhaustedError("the matrices take more than 2^63 bytes");
  layout.end = *ranges.end();
  return layout;
}

GemmArgs ArgsAt(const Problem& problem, const Target& target, const JobLayout& layout,
                std::byte* block, absl::Span<std::byte> workspace) {
  const auto place = [block](const JobRange& range) {
    return range.bytes == 0 ? nullptr : block + range.offset;
  };
  const auto factors = [&](const JobRange& range) {
    return absl::MakeConstSpan(reinterpret_cast<const float*>(place(range)),
                               static_cast<size_t>(range.bytes) / sizeof(float));
  };
  return {.problem = problem,
          .target = target,
          .a = place(layout.a),
          .b = place(layout.b),
          .c = place(layout.c),
          .bias = place(layout.bias),
          .a_scale = factors(layout.a_scale),
          .b_scale = factors(layout.b_scale),
          .d = place(layout.d),
          .workspace = workspace};
}

}  // namespace gemmd
