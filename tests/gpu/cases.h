// SPDX-License-Identifier: Apache-2.0
//
// What kernels of a GPU are checked with. A case is one product whose matrices lie in memory in
// several ways, so that it is simulated only once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "tests/gpu/product.h"
#include "tests/kernels/sim/operand_families.h"

namespace gemmd {

enum class Topic {
  kShapes,       // All m, n, k around the size of the tile; all orders of A, B and D.
  kFamilies,     // Every family of operands, on a shape with partial tiles.
  kOrders,       // Operands whose lines are whole chunks, so that kernels may read either order.
  kBatches,      // Batches of 0, 2 and 3, with matrices shared or not.
  kLong,         // A k so long that the kernel looks for an abort.
  kOutputs,      // Every type of D, with nothing else done to the result.
  kBlocks,       // Factors of blocks of many shapes, for rows that multiply by them.
  kDequantized,  // Operands of at most 8 bits, with factors or without, for rows of 16-bit floats.
  kWeights,      // Weights of s4 that narrow rows dequantize in registers.
  kEpilogues,    // Every type of D, with C, bias, scales and activations drawn at random.
};
std::string_view NameOf(Topic topic);

struct CaseSpec {
  Topic topic;
  int64_t m;
  int64_t n;
  int64_t k;
  Family family;
  int64_t batch = 1;
  bool shares_a = false;
  bool shares_b = false;
  ElementType d;  // Set where the topic concerns it.
  // The types of operands if they are not the kernel's own.
  std::optional<ElementType> a = std::nullopt;
  std::optional<ElementType> b = std::nullopt;
};

// All cases of a row, or (quick) a handful, for tools that make kernels a hundred times slower. In
// another round shapes are combined with other families.
std::vector<CaseSpec> CasesOf(const Kernel& kernel, size_t round, bool is_quick);

// The products of a case. All have the same elements, scalars and epilogue; orders and gaps differ,
// and the gaps hold random bits.
std::vector<Product> MakeProducts(const Kernel& kernel, const CaseSpec& spec, bool is_quick,
                                  RandomSource& random);

// "129x257x67 f32 <- f16 row, f16 column, D column, leading dimensions 67 68 ...".
std::string Describe(const CaseSpec& spec, const Problem& problem);

}  // namespace gemmd
