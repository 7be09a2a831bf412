// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/flat_operands.h"

#include <cstring>

namespace gemmd {
namespace {

// A wire's floats may lie anywhere. Factors of blocks are no vector of floats.
std::vector<float> FloatsOf(ScaleKind kind, const Source& source) {
  if (kind == ScaleKind::kBlocks) return {};
  const FlatSource flat(source);
  std::vector<float> floats(flat.bytes().size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), flat.bytes().data(), flat.bytes().size());
  return floats;
}

Source FactorsOf(ScaleKind kind, const Source& source) {
  return kind == ScaleKind::kBlocks ? source : Source();
}

}  // namespace

FlatSource::FlatSource(const Source& source) {
  if (source.pieces.size() == 1) {
    bytes_ = source.pieces.front();
    return;
  }
  copy_.reserve(static_cast<size_t>(source.bytes));
  for (const Piece piece : source.pieces) copy_.insert(copy_.end(), piece.begin(), piece.end());
  bytes_ = copy_;
}

FlatOperands::FlatOperands(const Job& job)
    : a(job.a),
      b(job.b),
      c(job.c),
      bias(job.bias),
      a_scale(FloatsOf(job.problem.a_scale, job.a_scale)),
      b_scale(FloatsOf(job.problem.b_scale, job.b_scale)),
      a_factors(FactorsOf(job.problem.a_scale, job.a_scale)),
      b_factors(FactorsOf(job.problem.b_scale, job.b_scale)) {}

verify::CheckedProduct CheckedProductOf(const Job& job, const Kernel& kernel, const Target& target,
                                        const FlatOperands& operands, absl::Span<const std::byte> d,
                                        AbortFlag abort) {
  return {.kernel = kernel,
          .target = target,
          .problem = job.problem,
          .a = operands.a.bytes(),
          .b = operands.b.bytes(),
          .c = operands.c.bytes(),
          .bias = operands.bias.bytes(),
          .a_scale = operands.a_scale,
          .b_scale = operands.b_scale,
          .d = d,
          .abort = abort,
          .a_factors = operands.a_factors.bytes(),
          .b_factors = operands.b_factors.bytes()};
}

}  // namespace gemmd
