// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/block_scale.h"

#include <algorithm>
#include <cstring>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

absl::Status CheckExtent(std::string_view field, std::string_view member, int64_t got) {
  if (got >= 1) return absl::OkStatus();
  return Invalid(Concat(field, ".", member), got, "1 or more");
}

// The end of the block that holds an element, or a later end of k.
int64_t EndOfBlock(const BlockScale* blocks, int64_t first, int64_t k) {
  if (blocks == nullptr || k - first <= blocks->depth - first % blocks->depth) return k;
  return first - first % blocks->depth + blocks->depth;
}

}  // namespace

std::string_view NameOf(FactorType type) {
  switch (type) {
    case FactorType::kF32: return "f32";
    case FactorType::kUe8m0: return "ue8m0";
    case FactorType::kUe4m3: return "ue4m3";
  }
  return "";
}

int64_t BytesOf(FactorType type) { return type == FactorType::kF32 ? 4 : 1; }

float DecodeFactor(FactorType type, const std::byte* factor) {
  if (type == FactorType::kF32) {
    float value = 0;
    std::memcpy(&value, factor, sizeof(value));
    return value;
  }
  return DecodeFactorCode(type, std::to_integer<uint32_t>(*factor));
}

std::string NameOf(const BlockScale& blocks) {
  return Concat(NameOf(blocks.type), " ", blocks.lines, "x", blocks.depth);
}

absl::StatusOr<int64_t> FactorBytes(std::string_view field, const BlockScale& blocks,
                                    int64_t extent, int64_t k, int64_t batch) {
  RETURN_IF_ERROR(CheckExtent(field, "rows_per_block", blocks.lines));
  RETURN_IF_ERROR(CheckExtent(field, "k_per_block", blocks.depth));
  const Checked bytes = Checked(blocks.line_blocks(extent)) * Checked(blocks.depth_blocks(k)) *
                        Checked(BytesOf(blocks.type)) * Checked(blocks.per_matrix ? batch : 1);
  if (bytes.value()) return *bytes.value();
  return Invalid(field, Concat(NameOf(blocks), " blocks of ", extent, "x", k, " elements"),
                 "less than 2^63 bytes of factors");
}

int64_t EndOfPart(const BlockScale* a, const BlockScale* b, int64_t first, int64_t k) {
  return std::min(EndOfBlock(a, first, k), EndOfBlock(b, first, k));
}

}  // namespace gemmd
