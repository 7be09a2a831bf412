// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_costs.h"

namespace gemmd {
namespace {

double Elements(const MatrixLayout& layout) {
  return static_cast<double>(layout.rows) * static_cast<double>(layout.columns);
}

double LoadSeconds(const EpilogueCosts& costs, const Problem& problem, ElementType stored,
                   ElementType type) {
  if (!problem.has_product()) return costs.zero;
  return type == stored ? costs.load[stored] : costs.load_integer_from_float;
}

// One element of D.
double ElementSeconds(const EpilogueCosts& costs, const Problem& problem, ElementType stored,
                      ElementType type) {
  double seconds = LoadSeconds(costs, problem, stored, type) + costs.encode[problem.d.type];
  if (problem.has_product()) {
    if (problem.has_scales()) seconds += costs.scale;
    if (problem.alpha != 1) seconds += costs.alpha;
  }
  if (problem.has_c()) {
    seconds += problem.c.order == problem.d.order ? costs.c : costs.c_across;
    seconds += costs.decode[problem.c.type];
  }
  if (problem.bias_axis != BiasAxis::kNone) seconds += costs.bias;
  return seconds + costs.activation[static_cast<size_t>(problem.activation)];
}

}  // namespace

double EpilogueSeconds(const HostCosts& costs, const Problem& problem, ElementType stored,
                       ElementType type) {
  constexpr int64_t kTileLength = 256;
  const EpilogueCosts& finish = type == ElementType::kF32 ? costs.finish_f32 : costs.finish_f64;
  const int64_t tiles = (problem.d.line_length() + kTileLength - 1) / kTileLength;
  const double lines = static_cast<double>(problem.d.lines()) * static_cast<double>(tiles);
  return finish.matrix + lines * finish.line +
         Elements(problem.d) * ElementSeconds(finish, problem, stored, type);
}

double WideningSeconds(const HostCosts& costs, const MatrixLayout& from, ElementType to) {
  const CopyCosts& copies = costs.copies;
  const bool is_biased = from.type == ElementType::kU8 && to == ElementType::kS8;
  const double line = is_biased ? copies.biased_line : copies.line;
  return copies.matrix + static_cast<double>(from.lines()) * line +
         Elements(from) * copies.widen[static_cast<size_t>(from.type)][to];
}

double ExpansionSeconds(const HostCosts& costs, const MatrixLayout& sparse) {
  return Elements(sparse) * costs.copies.expand[sparse.type];
}

}  // namespace gemmd
