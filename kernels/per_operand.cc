// SPDX-License-Identifier: Apache-2.0
#include "kernels/per_operand.h"

#include "absl/status/status.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

absl::StatusOr<int64_t> BytesOf(OperandRole role, Checked bytes) {
  if (bytes.value()) return *bytes.value();
  return absl::InvalidArgumentError(GotWant(NameOf(role), "2^63 bytes or more", "less"));
}

}  // namespace

absl::StatusOr<int64_t> OperandBytes(const Problem& problem, OperandRole role) {
  if (role < OperandRole::kBias) {
    if (!IsRead(problem, role)) return 0;
    ASSIGN_OR_RETURN(const ByteCount bytes,
                     BytesOf(NameOf(role), LayoutOf(problem, role), problem.batch));
    return bytes.least;
  }
  if (role == OperandRole::kBias) {
    if (problem.bias_axis == BiasAxis::kNone) return 0;
    const int64_t count = problem.bias_axis == BiasAxis::kRows ? problem.m : problem.n;
    return BytesOf(role, PackedBytes(problem.bias_type, count));
  }
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  const bool is_a = role == OperandRole::kAScale;
  const int64_t extent = is_a ? problem.m : problem.n;
  switch (is_a ? problem.a_scale : problem.b_scale) {
    case ScaleKind::kNone: return 0;
    case ScaleKind::kTensor: return kFloatBytes;
    case ScaleKind::kVector: return BytesOf(role, Checked(extent) * Checked(kFloatBytes));
    case ScaleKind::kBlocks: break;
  }
  if (!problem.has_product()) return 0;
  return FactorBytes(Concat(NameOf(role), ".blocks"), is_a ? problem.a_blocks : problem.b_blocks,
                     extent, problem.k, problem.batch);
}

}  // namespace gemmd
