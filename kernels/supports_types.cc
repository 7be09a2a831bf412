// SPDX-License-Identifier: Apache-2.0
#include "kernels/supports_types.h"

#include "kernels/text.h"

namespace gemmd {
namespace {

absl::Status Refuse(std::string_view field, std::string_view got, std::string_view want) {
  return absl::UnimplementedError(GotWant(field, got, want));
}

int Precision(ElementType accumulation) {
  switch (accumulation) {
    case ElementType::kF16: return 1;
    case ElementType::kF32: return 2;
    default: return 3;  // f64; and s32, which only rows of integers meet.
  }
}

}  // namespace

absl::Status SupportsTypes(const Kernel& kernel, const Problem& problem) {
  if (problem.a.type != kernel.a) return Refuse("a.type", NameOf(problem.a.type), NameOf(kernel.a));
  if (problem.b.type != kernel.b) return Refuse("b.type", NameOf(problem.b.type), NameOf(kernel.b));
  const ElementType accumulation = kernel.recipe.accumulation;
  if (Precision(problem.accumulation) <= Precision(accumulation)) return absl::OkStatus();
  return Refuse("accumulation_type", NameOf(problem.accumulation),
                Concat(NameOf(accumulation), " or less precise"));
}

}  // namespace gemmd
