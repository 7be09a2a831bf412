// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of BlockScaling::kParts (kernels/kernel.h) on a strip of D: some rows of A times a
// panel of columns of B, both widened to f32.
//
// Products of floats of at most 8 bits are exact in f32, so fused multiply-adds conform to the
// contract too. A strip's columns are independent: every vector width gives the same bits.
#pragma once

#include <cstdint>

#include "kernels/matrix/abort.h"
#include "kernels/matrix/block_scale.h"

namespace gemmd {

// Six rows of two vectors each, and their factors, fill the registers of AVX2.
inline constexpr int64_t kStripRows = 6;
inline constexpr int64_t kPanelColumns = 16;

struct Strip {
  // kStripRows lines of k elements. Those beyond the matrix may be any other line.
  const float* a[kStripRows];
  const float* b;  // k lines of kPanelColumns elements.
  int64_t k;
  // Null: the operand has no factors. Otherwise lines with one factor per block of k.
  const BlockScale* a_blocks;
  const float* a_factors[kStripRows];
  const BlockScale* b_blocks;
  const float* b_factors;          // Lines of kPanelColumns factors.
  float (*totals)[kPanelColumns];  // kStripRows lines, which are written.
  AbortFlag abort;                 // Once set, totals are unspecified.
};

// The vector width.
enum class BlockPath : uint8_t { kBaseline, kAvx2, kAvx512 };
bool CanRun(BlockPath path);
BlockPath BestBlockPath();

void SumStrip(BlockPath path, const Strip& strip);

}  // namespace gemmd
