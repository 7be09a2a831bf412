// SPDX-License-Identifier: Apache-2.0
//
// Operands as the vector code reads them. Every element passes through the registers of its lane on
// the way, so that a wrong fragment gives a wrong product.
//
// A chunk is a stretch of k, whole instructions deep. Lines are rows of A and columns of B, in
// whole tiles of an instruction; B lies in panels of kPanel columns.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/mma/arithmetic.h"
#include "kernels/sim/a_tiles.h"
#include "kernels/sim/product.h"
#include "kernels/sim/registers.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

// What follows from the instruction and the chip alone.
struct PackingPlan {
  PackingPlan(const mma::Instruction& instruction, mma::Chip chip);

  const mma::Instruction instruction;
  const mma::Arithmetic arithmetic;
  const OperandMap a_map;
  const OperandMap b_map;
  const OperandMap d_map;
  const int tile_rows;  // m of all products of one instruction.
  const int depth;      // k of one instruction.
  const int products;   // Elements of A along k that one instruction takes.
  // Left shifts that give the products of fused sums their fraction bits.
  int a_shift = 0;
  int b_shift = 0;
  // The places of an instruction's dense products in the order in which blocks take them; empty if
  // that is the order of k.
  std::vector<int> dense_order;
};

// Reads tiles after their way through registers: raw bits, row major.
template <typename Word>
class TileReader {
 public:
  TileReader(const PackingPlan& plan, const Product2D& product);

  // A tile of A, tile_rows x products; both it and a_k are valid until the next call.
  const Word* ReadA(int64_t row, int64_t k);
  // The place along k of each element of a sparse A, counted from the tile's start.
  const int* a_k() const { return a_k_.data(); }

  // A tile of B, depth x instruction.n.
  const Word* ReadB(int64_t k, int64_t column);

 private:
  const PackingPlan& plan_;
  const Product2D& product_;
  const ATiles a_tiles_;
  std::vector<Word> matrix_;
  std::vector<uint32_t> registers_;
  std::vector<uint32_t> metadata_;
  std::vector<int> a_k_;
};

// What a chunk holds: `instructions` from `k` on, of `rows` rows of A and `columns` columns of B.
// Each form of chunk below is packed to this shape.
struct ChunkShape {
  int64_t k;  // Where the chunk begins.
  int64_t instructions;
  int64_t first_row;
  int64_t rows;
  int64_t first_column;
  int64_t columns;
};

// A chunk for fused sums.
struct FusedChunk {
  std::vector<Term> a;  // rows x products.
  std::vector<uint32_t> a_bits;
  // The row of B that each element of A meets: rows x products if A is sparse, one line for all
  // rows if `dense_order` is not empty, otherwise nothing.
  std::vector<int32_t> a_rows;
  std::vector<int32_t> b_significands;  // Panels x depth x kPanel.
  std::vector<int32_t> b_exponents;
  std::vector<uint32_t> b_bits;

  void Resize(const PackingPlan& plan, const ChunkShape& shape);
  // Packs one tile across the chunk; `row` or `column` is counted from the chunk's first one.
  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
             TileReader<uint32_t>& reader);
  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
             TileReader<uint32_t>& reader);
};

// A chunk for integers: pairs along k of 16-bit elements. A sparse A is expanded.
struct IntegerChunk {
  std::vector<int32_t> a;  // rows x pairs.
  std::vector<int32_t> b;  // Panels x pairs x kPanel.

  void Resize(const PackingPlan& plan, const ChunkShape& shape);
  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
             TileReader<uint32_t>& reader);
  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
             TileReader<uint32_t>& reader);
};

// A chunk for bits: words of 64 along k.
struct BitChunk {
  std::vector<uint64_t> a;  // rows x words.
  std::vector<uint64_t> b;  // columns x words.

  void Resize(const PackingPlan& plan, const ChunkShape& shape);
  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
             TileReader<uint32_t>& reader);
  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
             TileReader<uint32_t>& reader);
};

// A chunk for multiply-adds: f64 as it is, f16 as f32.
template <typename Float>
struct FloatChunk {
  using Word = std::conditional_t<sizeof(Float) == 8, uint64_t, uint32_t>;

  std::vector<Float> a;  // rows x depth.
  std::vector<Float> b;  // Panels x depth x kPanel.

  void Resize(const PackingPlan& plan, const ChunkShape& shape);
  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
             TileReader<Word>& reader);
  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
             TileReader<Word>& reader);
};

}  // namespace gemmd::sim
