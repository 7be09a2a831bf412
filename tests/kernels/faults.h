// SPDX-License-Identifier: Apache-2.0
//
// Faults of chips, put into the bytes of a product: which bits of which elements change. Silent
// faults of real chips mostly change several bits, repeat over a matrix, follow the registers of a
// warp's lanes, and sometimes give NaN or infinity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/matrix/sparse24.h"
#include "kernels/mma/fragment.h"
#include "kernels/problem.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// Where a fault is: in an operand before the product, in an accumulator before it becomes an
// element of D, or in D.
enum class FaultAt : uint8_t { kOperand, kAccumulator, kResult };
inline constexpr FaultAt kAllPlaces[] = {FaultAt::kOperand, FaultAt::kAccumulator,
                                         FaultAt::kResult};
std::string_view NameOf(FaultAt at);

enum class FaultKind : uint8_t {
  kOneBit,    // One bit of one element.
  kManyBits,  // Two to four bits of one element.
  kLane,      // Bits of one register of one lane, in every fragment.
  kPeriod,    // The same bits of every n-th element.
  kRow,       // The same bits of each element of a row of one fragment, or of a column.
  kColumn,
  kStuckBit,   // One bit of one register of one lane, which always is 0, or always 1.
  kNonFinite,  // One element is NaN or infinite, or as large as its type can be.
};
inline constexpr FaultKind kAllFaults[] = {
    FaultKind::kOneBit, FaultKind::kManyBits, FaultKind::kLane,     FaultKind::kPeriod,
    FaultKind::kRow,    FaultKind::kColumn,   FaultKind::kStuckBit, FaultKind::kNonFinite};
std::string_view NameOf(FaultKind kind);

// The elements of a row-major matrix without padding, dense or the values of one in 2:4 form.
// Borrows the bytes.
class ElementTable {
 public:
  ElementTable(const MatrixLayout& layout, std::byte* matrix);

  ElementType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  uint64_t Load(int64_t row, int64_t column) const;
  void Store(int64_t row, int64_t column, uint64_t bits);

 private:
  std::byte* const matrix_;
  const ElementType type_;
  const int64_t rows_;
  int64_t columns_;
  int64_t line_bytes_;
};

// Draws a fault and puts it into the matrix, which the instruction holds as `operand`. The matrix
// may stay as it is: a stuck bit may have the right value everywhere.
void Corrupt(FaultKind kind, const mma::Instruction& instruction, mma::Operand operand,
             ElementTable table, RandomSource& random);

// Draws a bit that is stuck in a register of the accumulators from the first instruction along k to
// the last. `sums` is the right m x n result of a problem without an epilogue, A dense. Sums that
// the bit changes are replaced by those of a loop over k, which rounds in its own way.
void StickAccumulator(const mma::Instruction& instruction, const Problem& problem,
                      const std::byte* a, const std::byte* b, ElementTable sums,
                      RandomSource& random);

}  // namespace gemmd
