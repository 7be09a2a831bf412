// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/prepare.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

// 0 for a type that has no factors of blocks.
double LargestInBlock(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_E4M3: return 448;
    case v1::ELEMENT_TYPE_E5M2: return 57344;
    case v1::ELEMENT_TYPE_E3M2: return 28;
    case v1::ELEMENT_TYPE_E2M3: return 7.5;
    case v1::ELEMENT_TYPE_E2M1: return 6;
    default: return 0;
  }
}

struct Factor {
  double value;
  std::string bytes;
};

// The least power of two that is no less than a ratio, as far as there is one.
Factor PowerOfTwo(double ratio) {
  int exponent = 0;
  const double fraction = std::frexp(ratio, &exponent);
  const int least = std::clamp(fraction == 0.5 ? exponent - 1 : exponent, -127, 127);
  return {std::ldexp(1.0, least), std::string(1, static_cast<char>(least + 127))};
}

// The same among the codes of e4m3, of which 0x7e is the largest.
Factor LeastUe4m3(double ratio) {
  int code = 1;
  while (code < 0x7e && ElementValue(v1::ELEMENT_TYPE_E4M3, static_cast<uint64_t>(code)) < ratio) {
    ++code;
  }
  return {ElementValue(v1::ELEMENT_TYPE_E4M3, static_cast<uint64_t>(code)),
          std::string(1, static_cast<char>(code))};
}

Factor FactorOf(v1::FactorType type, double magnitude, double largest) {
  const double ratio = magnitude == 0 ? 1 : magnitude / largest;
  if (type == v1::FACTOR_TYPE_UE8M0) return PowerOfTwo(ratio);
  if (type == v1::FACTOR_TYPE_UE4M3) return LeastUe4m3(ratio);
  float value = static_cast<float>(ratio);
  if (!(value > 0)) value = 1;  // A magnitude whose factor would be 0.
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return {value, bytes};
}

absl::Status Check(std::span<const float> values, int64_t rows, int64_t columns,
                   v1::ElementType type, const BlockFormat& format) {
  if (LargestInBlock(type) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("type: got ", ElementTypeName(type), ", want e4m3, e5m2, e3m2, e2m3 or e2m1"));
  }
  if (format.type == v1::FACTOR_TYPE_UNSPECIFIED || !v1::FactorType_IsValid(format.type)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "format.type: got ", static_cast<int>(format.type), ", want F32, UE8M0 or UE4M3"));
  }
  if (format.lines < 1 || format.depth < 1) {
    return absl::InvalidArgumentError(absl::StrCat("format: got blocks of ", format.lines, "x",
                                                   format.depth, ", want 1x1 or more"));
  }
  int64_t want = 0;
  const bool overflows = __builtin_mul_overflow(rows, columns, &want);
  if (rows < 0 || columns < 0 || overflows || static_cast<size_t>(want) != values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("values: got ", values.size(), ", want ", rows, "x", columns));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const auto at = static_cast<int64_t>(i);
    return absl::InvalidArgumentError(absl::StrCat("values: got ", values[i], " at [", at / columns,
                                                   ", ", at % columns, "], want a finite value"));
  }
  return absl::OkStatus();
}

int64_t Blocks(int64_t extent, int64_t block) { return extent / block + (extent % block != 0); }

}  // namespace

absl::StatusOr<OwnedMatrix> QuantizeBlocks(std::span<const float> values, int64_t rows,
                                           int64_t columns, v1::ElementType type,
                                           const BlockFormat& format) {
  if (absl::Status status = Check(values, rows, columns, type, format); !status.ok()) {
    return status;
  }
  OwnedMatrix matrix = {.type = type, .rows = rows, .columns = columns};
  matrix.factor_type = format.type;
  matrix.rows_per_block = format.lines;
  matrix.k_per_block = format.depth;
  // An empty matrix may have any number of lines, and has no blocks.
  if (values.empty()) return matrix;
  const bool is_along = format.is_k_along_rows;
  const int64_t depth_blocks = Blocks(is_along ? columns : rows, format.depth);
  const int64_t line_blocks = Blocks(is_along ? rows : columns, format.lines);
  const auto block_of = [&](int64_t row, int64_t column) {
    const int64_t line = is_along ? row : column;
    const int64_t k = is_along ? column : row;
    return static_cast<size_t>(line / format.lines * depth_blocks + k / format.depth);
  };
  std::vector<double> largest(static_cast<size_t>(line_blocks * depth_blocks));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double& magnitude = largest[block_of(i, j)];
      magnitude =
          std::max(magnitude, std::fabs(double{values[static_cast<size_t>(i * columns + j)]}));
    }
  }
  for (double& magnitude : largest) {
    const Factor factor = FactorOf(format.type, magnitude, LargestInBlock(type));
    matrix.factors += factor.bytes;
    magnitude = factor.value;
  }
  const int64_t line_bytes = *PackedLineBytes(type, columns);
  matrix.data.resize(static_cast<size_t>(rows * line_bytes));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const double scaled = values[static_cast<size_t>(i * columns + j)] / largest[block_of(i, j)];
      const double bounded = std::clamp(scaled, -LargestInBlock(type), LargestInBlock(type));
      StoreElement(type, ElementPattern(type, bounded), j, matrix.data.data() + i * line_bytes);
    }
  }
  return matrix;
}

}  // namespace gemmd
