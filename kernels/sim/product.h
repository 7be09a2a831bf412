// SPDX-License-Identifier: Apache-2.0
//
// A whole matrix product as computed by a GEMM kernel of one instruction: one accumulator for each
// element, from zero, one instruction after the other in ascending k, tails padded with zeros. If C
// and D of the instruction have different types, D becomes the next C exactly, or to nearest even.
// With promotion, the accumulator of every promotion_k elements of k is added to a total in f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/matrix/abort.h"
#include "kernels/matrix/layout.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instruction.h"
#include "kernels/problem.h"

namespace gemmd::sim {

// One matrix product of a batch, without alpha, C, bias and the like. `a` points at a dense A, or
// at the values of a sparse one.
struct Product2D {
  const mma::Instruction& instruction;
  mma::Chip chip;
  const Problem& problem;
  const std::byte* a;
  const std::byte* b;
  const std::byte* a_factors = nullptr;  // Block factors, if the problem has them.
  const std::byte* b_factors = nullptr;
  AbortFlag abort = nullptr;  // Once set, results are meaningless.
  int promotion_k = 0;        // Recipe::promotion_k; a multiple of the instruction's k.
};

// Destination of accumulators: m x n in D's order without gaps; f16 is stored as f32.
struct AccumulatorMatrix {
  std::byte* data;
  ElementType type;  // f32, f64 or s32.
  Order order;
  int64_t leading_dimension;
};

// The implementation of the arithmetic. All paths give the same bits.
enum class Path : uint8_t { kScalar, kAvx2, kAvx512 };

// Whether this processor and this instruction support a path.
bool CanRun(Path path, const mma::Instruction& instruction, mma::Chip chip);

// The fastest path that this processor and this instruction support.
Path BestPath(const mma::Instruction& instruction, mma::Chip chip);

// Computes the accumulators of a product, or some of them if aborted. Threads: parallel inside, as
// many as SetThreads gave the calling thread.
void Multiply(Path path, const Product2D& product, const AccumulatorMatrix& accumulators);

// The same as Multiply, with the plain unit, tile by tile through registers.
void MultiplyScalar(const Product2D& product, const AccumulatorMatrix& accumulators);

void StoreAccumulator(const AccumulatorMatrix& accumulators, int64_t row, int64_t column,
                      uint64_t bits);

// Bytes of scratch memory for MultiplySplit.
Checked SplitBytes(const Problem& problem);

// Computes the accumulators, f32, of a product whose A and B are f32, with two f16 products
// (split_float.h), or some of them if aborted. `memory` has SplitBytes(product.problem) bytes and
// is aligned to 4. Threads: as Multiply.
void MultiplySplit(Path path, const Product2D& product, const AccumulatorMatrix& accumulators,
                   std::byte* memory);

// What MultiplySplit does beside its two products, on normal data of its own, to be timed for
// predictions. Threads: as Multiply.
class SplitSample {
 public:
  SplitSample();
  ~SplitSample();
  SplitSample(const SplitSample&) = delete;
  SplitSample& operator=(const SplitSample&) = delete;

  // Splits kSplit elements, joins kJoined elements of D, or makes as many exact sums of this depth,
  // at most kDepth.
  void Split();
  void Join();
  void SumExactly(int64_t depth);

  static constexpr int64_t kLines = 32;
  static constexpr int64_t kDepth = 256;
  static constexpr int64_t kSplit = 2 * kLines * kDepth;
  static constexpr int64_t kJoined = kLines * kLines;

 private:
  struct Operands;
  std::unique_ptr<Operands> operands_;
};

}  // namespace gemmd::sim
