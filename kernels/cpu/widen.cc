// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/widen.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/matrix/abortable_loop.h"

namespace gemmd {
namespace {

constexpr int64_t kChunk = 1024;  // A multiple of 8, so that chunks start on a byte.
constexpr int64_t kParallelElements =
    128 * 1024;  // With fewer elements, starting threads costs more than it saves.

void SignsOf(float* bits, int64_t count) {
  for (int64_t i = 0; i < count; ++i) bits[i] = 1 - 2 * bits[i];
}

// Stores values that the type holds exactly.
void StoreExact(ElementType type, const float* values, int64_t count, std::byte* line) {
  switch (type) {
    case ElementType::kF64:
      for (int64_t i = 0; i < count; ++i) {
        const double value = values[i];
        std::memcpy(line + 8 * i, &value, sizeof(value));
      }
      return;
    case ElementType::kBf16:
      for (int64_t i = 0; i < count; ++i) {
        const auto upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
        std::memcpy(line + 2 * i, &upper, sizeof(upper));
      }
      return;
    case ElementType::kS8:
      for (int64_t i = 0; i < count; ++i) {
        line[i] = static_cast<std::byte>(static_cast<int8_t>(values[i]));
      }
      return;
    default: std::memcpy(line, values, static_cast<size_t>(count) * sizeof(float)); return;
  }
}

void WidenLine(Widening widening, ElementType from, const std::byte* source, int64_t count,
               ElementType to, std::byte* copy, AbortFlag abort) {
  for (int64_t first = 0; first < count && !IsSet(abort); first += kChunk) {
    const int64_t chunk = std::min(kChunk, count - first);
    if (widening == Widening::kLess128) {
      for (int64_t i = first; i < first + chunk; ++i) copy[i] = source[i] ^ std::byte{0x80};
      continue;
    }
    float values[kChunk];
    DecodeLine(from, source + first / 8 * BitsOf(from), chunk, values);
    if (widening == Widening::kSign) SignsOf(values, chunk);
    StoreExact(to, values, chunk, copy + first / 8 * BitsOf(to));
  }
}

}  // namespace

void Widen(Widening widening, const MatrixLayout& from, const std::byte* source,
           const MatrixLayout& to, std::byte* copy, AbortFlag abort) {
  const int64_t length = from.line_length();
  const int64_t copied_bytes = length * BitsOf(to.type) / 8;
  const int64_t line_bytes = to.line_length() * BitsOf(to.type) / 8;
  const bool is_shared = to.lines() * length >= kParallelElements;
  ForEachUnlessAborted(abort, is_shared, to.lines(), [&](int64_t i) {
    std::byte* line = copy + i * to.line_stride_bytes();
    if (i >= from.lines()) {
      std::fill(line, line + line_bytes, std::byte{0});
      return;
    }
    WidenLine(widening, from.type, source + i * from.line_stride_bytes(), length, to.type, line,
              abort);
    std::fill(line + copied_bytes, line + line_bytes, std::byte{0});
  });
}

}  // namespace gemmd
