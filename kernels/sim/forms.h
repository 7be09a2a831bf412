// SPDX-License-Identifier: Apache-2.0
//
// The forms in which the vector code takes operands: how sums are kept, how deep chunks are, and
// the work on a region of the result.
#pragma once

#include <cstdint>

#include "kernels/sim/packing.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

// Elements along k that are packed at once: with 16 columns of 8 bytes each they fill half of a 64
// KiB first-level cache. Bits take so little space that deeper chunks cost nothing.
inline constexpr int64_t kChunkDepth = 256;
inline constexpr int64_t kBitChunkDepth = 4096;
// What one task computes: rows against one panel.
struct Region {
  int64_t row;  // Counted from the chunk's first row.
  int64_t rows;
  int64_t panel;
};

struct FusedForm {
  using Chunk = FusedChunk;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t products = shape.instructions * plan.products;
    const int64_t panel = region.panel * shape.instructions * plan.depth * kPanel;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      const int32_t* rows = nullptr;
      if (!chunk.a_rows.empty()) {
        rows = chunk.a_rows.data() + (plan.instruction.is_sparse() ? row * products : 0);
      }
      code.fused({.instruction = &plan.instruction,
                  .arithmetic = &plan.arithmetic,
                  .products = plan.products,
                  .depth = plan.depth,
                  .instructions = static_cast<int>(shape.instructions),
                  .a = &chunk.a[static_cast<size_t>(row * products)],
                  .a_bits = &chunk.a_bits[static_cast<size_t>(row * products)],
                  .a_rows = rows,
                  .significands = &chunk.b_significands[static_cast<size_t>(panel)],
                  .exponents = &chunk.b_exponents[static_cast<size_t>(panel)],
                  .b_bits = &chunk.b_bits[static_cast<size_t>(panel)],
                  .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

struct IntegerForm {
  using Chunk = IntegerChunk;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = 2 * kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t pairs = shape.instructions * plan.depth / 2;
    for (int64_t row = region.row; row < region.row + region.rows; row += kIntegerRows) {
      code.integers({.pairs_per_instruction = plan.depth / 2,
                     .instructions = static_cast<int>(shape.instructions),
                     .saturates = plan.instruction.saturates,
                     .a = &chunk.a[static_cast<size_t>(row * pairs)],
                     .a_stride = pairs,
                     .b = &chunk.b[static_cast<size_t>(region.panel * pairs * kPanel)],
                     .sums = sums + row * stride + region.panel * kPanel,
                     .sums_stride = stride});
    }
  }
};

struct BitForm {
  using Chunk = BitChunk;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kBitChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t words = shape.instructions * plan.depth / 64;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      code.bits({.words = static_cast<int>(words),
                 .is_xor = plan.instruction.bit_count == mma::BitCount::kXor,
                 .a = &chunk.a[static_cast<size_t>(row * words)],
                 .b = &chunk.b[static_cast<size_t>(region.panel * kPanel * words)],
                 .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

struct F64Form {
  using Chunk = FloatChunk<double>;
  using Operand = uint64_t;
  using Sum = double;
  static constexpr int64_t kDepth = kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t depth = shape.instructions * plan.depth;
    for (int64_t row = region.row; row < region.row + region.rows; row += kF64Rows) {
      code.f64({.rounding = plan.instruction.rounding,
                .depth = static_cast<int>(depth),
                .a = &chunk.a[static_cast<size_t>(row * depth)],
                .a_stride = depth,
                .b = &chunk.b[static_cast<size_t>(region.panel * depth * kPanel)],
                .sums = sums + row * stride + region.panel * kPanel,
                .sums_stride = stride});
    }
  }
};

struct MultiplyAddForm {
  using Chunk = FloatChunk<float>;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t depth = shape.instructions * plan.depth;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      code.multiply_adds({.c = plan.instruction.c,
                          .d = plan.instruction.d,
                          .instructions = static_cast<int>(shape.instructions),
                          .a = &chunk.a[static_cast<size_t>(row * depth)],
                          .b = &chunk.b[static_cast<size_t>(region.panel * depth * kPanel)],
                          .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

}  // namespace gemmd::sim
