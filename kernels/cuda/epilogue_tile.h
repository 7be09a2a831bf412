// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of a tile, shared by several threads; epilogue.cuh has the functions that kernels
// call. Functions are constexpr for nvcc; see element_codes.h.
//
// A thread applies the epilogue to one unit of D's line at a time: 8 bytes of it, or 8 elements
// where those take fewer bytes; units start and end on a byte. Every step rounds on its own: no
// file that includes this one is compiled with contraction into fused multiply-adds.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/activation.h"
#include "kernels/cuda/epilogue.h"
#include "kernels/matrix/element_codes.h"

namespace gemmd {

// A tile of accumulators, row major, and its place in D.
template <typename Accumulator>
struct StagedTile {
  const Accumulator* data = nullptr;  // Null if there is no product.
  int rows = 0;                       // Rows and columns are multiples of 8.
  int columns = 0;
  int stride = 0;  // In elements.
  int64_t batch_index = 0;
  int64_t first_row = 0;  // First row and column are multiples of 8.
  int64_t first_column = 0;
};

// The type in which the epilogue computes.
template <typename Accumulator>
using EpilogueType = std::conditional_t<std::is_same_v<Accumulator, float>, float, double>;

// Encodes as element_codes.h does; the encoder of epilogue.cuh uses the GPU's own conversions.
struct PortableEncoder {
  template <ElementType kType, typename T>
  static constexpr uint64_t Encode(T value) {
    return EncodeCode<kType>(value);
  }
};

template <typename T>
constexpr T ScaleAt(const EpilogueScale& scale, int64_t index) {
  return scale.values == nullptr ? T{1} : static_cast<T>(scale.values[scale.varies ? index : 0]);
}

// Element (row, column) of matrix `batch_index` of C.
template <typename T>
constexpr T LoadC(const EpilogueMatrix<const std::byte>& c, int64_t batch_index, int64_t row,
                  int64_t column) {
  const bool is_row_major = c.order == Order::kRowMajor;
  const std::byte* line = c.data + batch_index * c.batch_stride_bytes +
                          (is_row_major ? row : column) * c.line_stride_bytes;
  return LoadElement<T>(c.type, line, is_row_major ? column : row);
}

// Turns the accumulator `x` of an element into the value to encode.
template <typename T>
constexpr T ApplyEpilogueToElement(const EpilogueParameters& parameters, int64_t batch_index,
                                   int64_t row, int64_t column, T x) {
  if (parameters.has_product) {
    if (parameters.has_scales) {
      const T scale = ScaleAt<T>(parameters.a_scale, row) * ScaleAt<T>(parameters.b_scale, column);
      x = x * scale;
    }
    if (parameters.alpha != 1) x = x * static_cast<T>(parameters.alpha);
  }
  if (parameters.c.data != nullptr) {
    const T term =
        static_cast<T>(parameters.beta) * LoadC<T>(parameters.c, batch_index, row, column);
    x = x + term;
  }
  if (parameters.bias_axis != BiasAxis::kNone) {
    const int64_t index = parameters.bias_axis == BiasAxis::kRows ? row : column;
    x = x + LoadElement<T>(parameters.bias_type, parameters.bias, index);
  }
  return Activate(parameters.activation, x);
}

// The code of an element of D.
template <typename Encoder, typename Accumulator>
constexpr uint64_t EpilogueCode(const EpilogueParameters& parameters, int64_t batch_index,
                                int64_t row, int64_t column, Accumulator accumulator) {
  using T = EpilogueType<Accumulator>;
  if constexpr (std::is_same_v<Accumulator, double>) {
    const bool keeps_bits = parameters.is_plain && parameters.d.type == ElementType::kF64;
    if (keeps_bits) return std::bit_cast<uint64_t>(accumulator);
  }
  const T x =
      ApplyEpilogueToElement<T>(parameters, batch_index, row, column, static_cast<T>(accumulator));
  return WithElementType(parameters.d.type, [x]<ElementType kType>() -> uint64_t {
    return Encoder::template Encode<kType>(x);
  });
}

// Stores one unit: `count` elements from element `along` of the tile's line `line`.
template <typename Encoder, typename Accumulator>
constexpr void ApplyEpilogueToUnit(const EpilogueParameters& parameters,
                                   const StagedTile<Accumulator>& tile, int line, int along,
                                   int count, int bits) {
  const bool is_row_major = parameters.d.order == Order::kRowMajor;
  uint64_t word = 0;
  for (int e = 0; e < count; ++e) {
    const int row = is_row_major ? line : along + e;
    const int column = is_row_major ? along + e : line;
    Accumulator accumulator = 0;
    if (tile.data != nullptr) accumulator = tile.data[row * tile.stride + column];
    word |= EpilogueCode<Encoder>(parameters, tile.batch_index, tile.first_row + row,
                                  tile.first_column + column, accumulator)
            << e * bits;
  }
  const int64_t first_line = is_row_major ? tile.first_row : tile.first_column;
  const int64_t first = (is_row_major ? tile.first_column : tile.first_row) + along;
  std::byte* target = parameters.d.data + tile.batch_index * parameters.d.batch_stride_bytes +
                      (first_line + line) * parameters.d.line_stride_bytes + first / 8 * bits +
                      first % 8 * bits / 8;
  StoreBytes(target, word, (count * bits + 7) / 8);
}

// Stores the part of the tile that falls to thread `thread` of `threads`.
template <typename Encoder, typename Accumulator>
constexpr void ApplyEpilogueToPart(const EpilogueParameters& parameters,
                                   const StagedTile<Accumulator>& tile, int thread, int threads) {
  const bool is_row_major = parameters.d.order == Order::kRowMajor;
  const int64_t rows_left = parameters.m - tile.first_row;
  const int64_t columns_left = parameters.n - tile.first_column;
  const int rows = rows_left < tile.rows ? static_cast<int>(rows_left) : tile.rows;
  const int columns = columns_left < tile.columns ? static_cast<int>(columns_left) : tile.columns;
  const int lines = is_row_major ? rows : columns;
  const int length = is_row_major ? columns : rows;
  const int bits = BitsOf(parameters.d.type);
  const int unit = bits > 8 ? 64 / bits : 8;
  const int units = (length + unit - 1) / unit;
  for (int i = thread; i < lines * units; i += threads) {
    const int along = i % units * unit;
    ApplyEpilogueToUnit<Encoder>(parameters, tile, i / units, along,
                                 length - along < unit ? length - along : unit, bits);
  }
}

}  // namespace gemmd
