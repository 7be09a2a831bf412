// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/epilogue.h"

#include "kernels/kernel.h"

namespace gemmd {
namespace {

template <typename Byte>
EpilogueMatrix<Byte> MatrixOf(const MatrixLayout& layout, Byte* data) {
  return {.data = data,
          .line_stride_bytes = layout.line_stride_bytes(),
          .batch_stride_bytes = layout.batch_stride_bytes,
          .type = layout.type,
          .order = layout.order};
}

EpilogueScale ScaleOf(absl::Span<const float> values) {
  if (values.empty()) return {};
  return {.values = values.data(), .varies = values.size() > 1};
}

bool PairsAreAligned(const Problem& problem) {
  const int64_t pair_bytes = 2 * BitsOf(problem.d.type) / 8;
  if (pair_bytes == 0) return false;
  return problem.d.line_stride_bytes() % pair_bytes == 0 &&
         (problem.batch == 1 || problem.d.batch_stride_bytes % pair_bytes == 0);
}

}  // namespace

bool StoresDirectly(const Problem& problem, ElementType accumulators) {
  Problem without_alpha = problem;
  without_alpha.alpha = 1;
  if (!problem.has_product() || !without_alpha.is_plain()) return false;
  const ElementType d = problem.d.type;
  switch (accumulators) {
    case ElementType::kF32:
      return d == ElementType::kF32 || d == ElementType::kF16 || d == ElementType::kBf16;
    case ElementType::kF64: return d == ElementType::kF64;
    case ElementType::kS32: return d == ElementType::kS32 && problem.alpha == 1;
    default: return false;
  }
}

bool FitsRegisters(const Problem& problem) {
  const auto is_usual = [](ElementType type) {
    return type == ElementType::kF32 || type == ElementType::kF16 || type == ElementType::kBf16;
  };
  return problem.has_product() && (!problem.has_c() || is_usual(problem.c.type)) &&
         (problem.bias_axis == BiasAxis::kNone || is_usual(problem.bias_type));
}

EpilogueParameters EpilogueOf(const GemmArgs& args, ElementType accumulators) {
  const Problem& problem = args.problem;
  EpilogueParameters parameters;
  parameters.m = problem.m;
  parameters.n = problem.n;
  parameters.d = MatrixOf(problem.d, args.d);
  if (problem.has_c()) parameters.c = MatrixOf(problem.c, args.c);
  if (problem.bias_axis != BiasAxis::kNone) parameters.bias = args.bias;
  parameters.a_scale = ScaleOf(args.a_scale);
  parameters.b_scale = ScaleOf(args.b_scale);
  parameters.alpha = problem.alpha;
  parameters.alpha_f32 = static_cast<float>(problem.alpha);
  parameters.beta = problem.beta;
  parameters.bias_type = problem.bias_type;
  parameters.bias_axis = problem.bias_axis;
  parameters.activation = problem.activation;
  parameters.has_product = problem.has_product();
  parameters.has_scales = problem.has_scales();
  parameters.is_plain = problem.is_plain();
  parameters.stores_directly = StoresDirectly(problem, accumulators);
  parameters.pairs_are_aligned = PairsAreAligned(problem);
  return parameters;
}

}  // namespace gemmd
