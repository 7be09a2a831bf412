// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/epilogues.h"

#include <array>

#include "kernels/matrix/text.h"
#include "tests/gpu/cases.h"

namespace gemmd {
namespace {

// Any type except b1, which neither C nor a bias can have; half of the draws are types that kernels
// finish in registers.
ElementType RandomType(RandomSource& random) {
  constexpr std::array<ElementType, 3> kUsual = {ElementType::kF32, ElementType::kF16,
                                                 ElementType::kBf16};
  if (random.Flip()) return kUsual[static_cast<size_t>(random.Between(0, 2))];
  const auto last = static_cast<int64_t>(kAllElementTypes.size()) - 1;
  while (true) {
    const ElementType type = kAllElementTypes[static_cast<size_t>(random.Between(0, last))];
    if (type != ElementType::kB1) return type;
  }
}

double RandomScalar(RandomSource& random) {
  switch (random.Between(0, 3)) {
    case 0: return 1;
    case 1: return -0.5;
    default: return random.AnyMagnitude(-2, 1);
  }
}

std::vector<std::byte> RandomLine(ElementType type, int64_t count, RandomSource& random) {
  const MatrixLayout layout = TightLayout("x", type, Order::kRowMajor, 1, count).value();
  std::vector<std::byte> bytes(static_cast<size_t>(layout.batch_stride_bytes));
  for (int64_t i = 0; i < count; ++i) {
    StoreBits(type, bytes.data(), i, Encode(type, random.AnyMagnitude(-3, 3)));
  }
  return bytes;
}

std::vector<float> RandomScale(ScaleKind kind, int64_t count, RandomSource& random) {
  if (kind == ScaleKind::kNone) return {};
  std::vector<float> scale(static_cast<size_t>(kind == ScaleKind::kTensor ? 1 : count));
  for (float& value : scale) value = static_cast<float>(random.AnyMagnitude(-3, 2));
  return scale;
}

template <typename Enum>
Enum AnyOf(Enum last, RandomSource& random) {
  return static_cast<Enum>(random.Between(0, static_cast<int64_t>(last)));
}

}  // namespace

Epilogue DrawEpilogue(const Kernel& kernel, const CaseSpec& spec, RandomSource& random) {
  Epilogue epilogue;
  // One in sixteen has no product at all.
  epilogue.alpha = random.Between(0, 15) == 0 ? 0 : RandomScalar(random);
  // Sums of integers are large; half of them become small enough for types of 8 bits.
  if (IsInteger(kernel.a) && random.Flip()) epilogue.alpha = random.AnyMagnitude(-14, -7);
  epilogue.beta = random.Flip() ? RandomScalar(random) : 0;
  if (epilogue.beta != 0) {
    epilogue.c_layout =
        TightLayout("c", RandomType(random), Order::kRowMajor, spec.m, spec.n).value();
    for (int64_t i = 0; i < spec.m * spec.batch; ++i) {
      const std::vector<std::byte> line = RandomLine(epilogue.c_layout.type, spec.n, random);
      epilogue.c.insert(epilogue.c.end(), line.begin(), line.end());
    }
  }
  epilogue.bias_axis = AnyOf(BiasAxis::kColumns, random);
  epilogue.bias_type = RandomType(random);
  if (epilogue.bias_axis != BiasAxis::kNone) {
    epilogue.bias = RandomLine(epilogue.bias_type,
                               epilogue.bias_axis == BiasAxis::kRows ? spec.m : spec.n, random);
  }
  if (BitsOf(kernel.a) == 8) epilogue.a_scale_kind = AnyOf(ScaleKind::kVector, random);
  if (BitsOf(kernel.b) == 8) epilogue.b_scale_kind = AnyOf(ScaleKind::kVector, random);
  epilogue.a_scale = RandomScale(epilogue.a_scale_kind, spec.m, random);
  epilogue.b_scale = RandomScale(epilogue.b_scale_kind, spec.n, random);
  epilogue.activation =
      random.Flip() ? AnyOf(Activation::kRelu, random) : AnyOf(Activation::kSilu, random);
  return epilogue;
}

void AddEpilogue(const Epilogue& epilogue, Product& product, RandomSource& random) {
  Problem& problem = product.problem;
  problem.alpha = epilogue.alpha;
  problem.beta = epilogue.beta;
  if (problem.has_c()) {
    const Order order = random.Flip() ? Order::kRowMajor : Order::kColumnMajor;
    const Spacing spacing = AnyOf(Spacing::kOdd, random);
    problem.c = SpacedLayout(epilogue.c_layout.type, order, problem.m, problem.n, spacing);
    product.c = RandomMatrices(problem.c, problem.batch, random);
    CopyElements(epilogue.c_layout, epilogue.c.data(), problem.c, product.c.data(), problem.batch);
  }
  problem.bias_axis = epilogue.bias_axis;
  problem.bias_type = epilogue.bias_type;
  product.bias = epilogue.bias;
  problem.a_scale = epilogue.a_scale_kind;
  problem.b_scale = epilogue.b_scale_kind;
  product.a_scale = epilogue.a_scale;
  product.b_scale = epilogue.b_scale;
  problem.activation = epilogue.activation;
}

std::string DescribeEpilogue(const Problem& problem) {
  constexpr std::array<std::string_view, 3> kScales = {"none", "one", "vector"};
  constexpr std::array<std::string_view, 5> kActivations = {"none", "relu", "gelu_erf", "gelu_tanh",
                                                            "silu"};
  if (problem.is_plain()) return "";
  std::string text = Concat(", alpha ", std::to_string(problem.alpha));
  if (problem.has_c()) {
    text += Concat(", beta ", std::to_string(problem.beta), ", C ", NameOf(problem.c.type),
                   problem.c.order == Order::kRowMajor ? " row" : " column");
  }
  if (problem.bias_axis != BiasAxis::kNone) {
    text += Concat(", bias ", NameOf(problem.bias_type),
                   problem.bias_axis == BiasAxis::kRows ? " by rows" : " by columns");
  }
  if (problem.has_scales()) {
    text += Concat(", scales ", kScales[static_cast<size_t>(problem.a_scale)], " ",
                   kScales[static_cast<size_t>(problem.b_scale)]);
  }
  return Concat(text, ", activation ", kActivations[static_cast<size_t>(problem.activation)]);
}

}  // namespace gemmd
