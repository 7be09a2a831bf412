// SPDX-License-Identifier: Apache-2.0
//
// The interface of the vector code: rows of A times a panel of B, with one column per lane. The
// code is compiled once for each kind of vector (avx2.cc, avx512.cc) and chosen at run time.
//
// A panel is 16 columns of B, row by row. Between instructions sums are kept as the bits of D's
// type, one word (f64: two) for each element. Everything is padded with zeros to whole instructions
// and panels.
#pragma once

#include <cstdint>

#include "kernels/mma/arithmetic.h"
#include "kernels/mma/instruction.h"

namespace gemmd::sim {

inline constexpr int kPanel = 16;

// An element in the form used by fused sums. The significand is signed and shifted so that a
// product has Arithmetic::fraction_bits fraction bits.
struct Term {
  int32_t significand;
  int32_t exponent;
};

// Exponents of zeros, and of infinities and NaNs: after any addition, zeros stay below and specials
// above all numbers.
inline constexpr int32_t kZeroExponent = -6000;
inline constexpr int32_t kSpecialExponent = 16000;
inline constexpr int32_t kLargestExponent = 5000;  // Sums with specials are larger.

// Fused sums of one row.
struct FusedRun {
  const mma::Instruction* instruction;
  const mma::Arithmetic* arithmetic;
  // Products of one instruction. Not computed from the instruction here: the linker could use an
  // inline function compiled with vector instructions for all other files too.
  int products;
  int depth;
  int instructions;        // Executed in order.
  const Term* a;           // In the order of the blocks.
  const uint32_t* a_bits;  // The raw bits of the elements.
  const int32_t* a_rows;   // The row of B for each element; null if it equals the element's place.
  const int32_t* significands;  // B's: rows x kPanel.
  const int32_t* exponents;
  const uint32_t* b_bits;
  uint32_t* sums;  // kPanel.
};

// Exact integers of kIntegerRows rows: pairs of 16-bit elements along k.
inline constexpr int kIntegerRows = 4;
struct IntegerRun {
  int pairs_per_instruction;
  int instructions;
  bool saturates;
  const int32_t* a;  // kIntegerRows rows.
  int64_t a_stride;  // Pairs from row to row.
  const int32_t* b;  // Pairs x kPanel.
  uint32_t* sums;
  int64_t sums_stride;
};

// Bits of one row against the columns of a panel, in words of 64.
struct BitRun {
  int words;
  bool is_xor;
  const uint64_t* a;
  const uint64_t* b;  // kPanel x words.
  uint32_t* sums;
};

// f64 multiply-adds of kF64Rows rows.
inline constexpr int kF64Rows = 2;
struct F64Run {
  mma::Rounding rounding;
  int depth;
  const double* a;
  int64_t a_stride;
  const double* b;  // depth x kPanel.
  double* sums;
  int64_t sums_stride;
};

// f32 multiply-adds of one row: m8n8k4 without a tensor core.
struct MultiplyAddRun {
  ElementType c;
  ElementType d;
  int instructions;
  const float* a;
  const float* b;  // 4 * instructions x kPanel.
  uint32_t* sums;
};

struct VectorCode {
  void (*fused)(const FusedRun& run);
  void (*integers)(const IntegerRun& run);
  void (*bits)(const BitRun& run);
  void (*f64)(const F64Run& run);
  void (*multiply_adds)(const MultiplyAddRun& run);
};

// Null if this processor cannot run it.
const VectorCode* Avx2Code();
const VectorCode* Avx512Code();

// Computes one block of a fused sum for one lane with the plain code: for lanes with specials, sums
// beyond 32 bits, and subnormal or infinite results. `first` counts products from the start of the
// run.
uint32_t PlainBlock(const FusedRun& run, int first, int row_base, int lane, uint32_t addend);

// The code for each kind of vector, whether or not this processor can run it.
extern const VectorCode kAvx2Code;
extern const VectorCode kAvx512Code;

}  // namespace gemmd::sim
