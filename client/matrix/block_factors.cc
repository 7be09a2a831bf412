// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/block_factors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gemmd/element_codec.h"

namespace gemmd {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t Blocks(int64_t extent, int64_t block) {
  return block < 1 ? 0 : extent / block + (extent % block != 0 ? 1 : 0);
}

}  // namespace

double Ue8m0Value(uint8_t code) { return code == 255 ? kNan : std::ldexp(1.0, code - 127); }

double Ue4m3Value(uint8_t code) { return ElementValue(v1::ELEMENT_TYPE_E4M3, code & 0x7f); }

BlockFactors::BlockFactors(const v1::BlockScale& blocks, int64_t lines, int64_t k)
    : blocks_(blocks),
      line_blocks_(Blocks(lines, blocks.rows_per_block())),
      depth_blocks_(Blocks(k, blocks.k_per_block())) {
  for (size_t code = 0; code < values_.size(); ++code) {
    const auto byte = static_cast<uint8_t>(code);
    values_[code] = blocks.type() == v1::FACTOR_TYPE_UE8M0 ? Ue8m0Value(byte) : Ue4m3Value(byte);
  }
}

double BlockFactors::At(int64_t batch, int64_t line, int64_t k) const {
  if (blocks_.type() == v1::FACTOR_TYPE_UNSPECIFIED) return 1;
  if (line_blocks_ == 0 || depth_blocks_ == 0) return kNan;
  const int64_t matrix = blocks_.per_matrix() ? batch * line_blocks_ * depth_blocks_ : 0;
  const auto at = static_cast<size_t>(matrix + line / blocks_.rows_per_block() * depth_blocks_ +
                                      k / blocks_.k_per_block());
  const std::string& factors = blocks_.factors();
  if (blocks_.type() != v1::FACTOR_TYPE_F32) {
    return at < factors.size() ? values_[static_cast<uint8_t>(factors[at])] : kNan;
  }
  float value = 0;
  if (factors.size() / sizeof(value) <= at) return kNan;
  std::memcpy(&value, factors.data() + at * sizeof(value), sizeof(value));
  return value;
}

}  // namespace gemmd
