// SPDX-License-Identifier: Apache-2.0
//
// Block factors of an operand: one factor per block of `lines` rows of A (or columns of B) by
// `depth` elements along k. An element stands for its value times the factor of its block. Factors
// are stored with k fastest: those of the first rows for blocks 0, 1, 2 ... along k, then those of
// the next rows. The last block in either direction may be shorter. Factors need no alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matrix/element_codes.h"
#include "kernels/mma/element_type.h"

namespace gemmd {

// ue8m0 is a power of two, 2^(code - 127), and 0xff is NaN. ue4m3 is e4m3 without a sign: its
// highest bit is ignored, and 0x7f is NaN.
enum class FactorType : uint8_t { kF32, kUe8m0, kUe4m3 };
std::string_view NameOf(FactorType type);
int64_t BytesOf(FactorType type);

// The value of a factor of 8 bits, which f32 holds exactly.
constexpr float DecodeFactorCode(FactorType type, uint32_t code) {
  if (type == FactorType::kUe4m3) return DecodeCode<ElementType::kE4m3>(code & 0x7f);
  if (code == 0xff) return std::bit_cast<float>(0x7fff'ffff);
  return std::bit_cast<float>(code == 0 ? 0x0040'0000 : code << 23);
}

// The value of a factor.
float DecodeFactor(FactorType type, const std::byte* factor);

struct BlockScale {
  FactorType type = FactorType::kF32;
  int64_t lines = 1;        // Rows of A or columns of B that share a factor.
  int64_t depth = 1;        // Elements along k that share a factor.
  bool per_matrix = false;  // Each matrix of a batch has its own factors, stored consecutively.

  int64_t line_blocks(int64_t extent) const { return extent / lines + (extent % lines != 0); }
  int64_t depth_blocks(int64_t k) const { return k / depth + (k % depth != 0); }
  // Bytes of one matrix's factors. The product does not overflow in a valid problem.
  int64_t matrix_bytes(int64_t extent, int64_t k) const {
    return per_matrix ? line_blocks(extent) * depth_blocks(k) * BytesOf(type) : 0;
  }
  // The offset of an element's factor in those of its matrix, in bytes.
  int64_t offset(int64_t line, int64_t depth_at, int64_t k) const {
    return (line / lines * depth_blocks(k) + depth_at / depth) * BytesOf(type);
  }
  // The offset of the factors of a part that begins at `line`, a multiple of `lines`, of `matrix`.
  int64_t part_offset(int64_t matrix, int64_t line, int64_t extent, int64_t k) const {
    return matrix * matrix_bytes(extent, k) + offset(line, 0, k);
  }
  // The smallest multiple of `granule` lines at whose multiples blocks begin; all lines if there is
  // none before the last line.
  int64_t GranuleOf(int64_t granule, int64_t extent) const {
    if (lines >= extent) return granule;
    const int64_t granules = lines / std::gcd(lines, granule);
    return granules < extent / granule ? granules * granule : extent;
  }

  friend bool operator==(const BlockScale&, const BlockScale&) = default;
};

// "f32 1x128".
std::string NameOf(const BlockScale& blocks);

// Bytes of all factors of an operand of `extent` rows or columns and `batch` matrices.
// Errors: InvalidArgument, naming "a.scale.blocks" and the like, for an extent of a block below 1
// and for 2^63 bytes or more.
absl::StatusOr<int64_t> FactorBytes(std::string_view field, const BlockScale& blocks,
                                    int64_t extent, int64_t k, int64_t batch);

// The end of the part of k that begins at `first`; within a part, both factors are constant. Null:
// that operand has no factors.
int64_t EndOfPart(const BlockScale* a, const BlockScale* b, int64_t first, int64_t k);

}  // namespace gemmd
