// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of sums in a warpgroup's registers, if it is a common one (FitsRegisters): scales,
// alpha, C and bias in common types, and an activation. It computes as ApplyEpilogueToElement does:
// sums in f32 in f32, sums in s32 in f64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/epilogue.h"
#include "kernels/cuda/epilogue_tile.h"

namespace gemmd {

// Element `index` of a line of one of the types that FitsRegisters allows.
template <ElementType kType>
__device__ __forceinline__ float UsualElement(const std::byte* line, int64_t index) {
  if constexpr (kType == ElementType::kF32) {
    return reinterpret_cast<const float*>(line)[index];
  } else {
    const uint16_t code = reinterpret_cast<const uint16_t*>(line)[index];
    if constexpr (kType == ElementType::kBf16) return __uint_as_float(uint32_t{code} << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
  }
}

// Calls body<type>() once for all elements that it loads: branching per element would serialize the
// loads.
template <typename Body>
__device__ __forceinline__ void WithUsualType(ElementType type, const Body& body) {
  if (type == ElementType::kF32) {
    body.template operator()<ElementType::kF32>();
  } else if (type == ElementType::kF16) {
    body.template operator()<ElementType::kF16>();
  } else {
    body.template operator()<ElementType::kBf16>();
  }
}

// The epilogue's terms of some columns of D.
template <int kCount>
struct ColumnTerms {
  float scales[kCount];
  float biases[kCount];
};

// Loads the terms of kCount columns, column_of(i) of them; a column beyond D has those of the last.
template <int kCount, typename ColumnOf>
__device__ __forceinline__ ColumnTerms<kCount> LoadColumnTerms(const EpilogueParameters& parameters,
                                                               const ColumnOf& column_of) {
  const int last = static_cast<int>(parameters.n) - 1;
  ColumnTerms<kCount> terms;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    terms.scales[i] = 1;
    terms.biases[i] = 0;
  }
  if (parameters.b_scale.values != nullptr) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      terms.scales[i] =
          parameters.b_scale.values[parameters.b_scale.varies ? min(column_of(i), last) : 0];
    }
  }
  if (parameters.bias_axis == BiasAxis::kColumns) {
    WithUsualType(parameters.bias_type, [&]<ElementType kType>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        terms.biases[i] = UsualElement<kType>(parameters.bias, min(column_of(i), last));
      }
    });
  }
  return terms;
}

// A sum as the epilogue computes with it. f64 holds 2^52 + 2^31 + sum in its low word.
__device__ __forceinline__ float Widened(float sum) { return sum; }
__device__ __forceinline__ double Widened(int32_t sum) {
  constexpr int kHighWord = 0x43300000;
  constexpr double kOffset = 0x1p52 + 0x1p31;
  return __hiloint2double(kHighWord, sum ^ static_cast<int32_t>(0x8000'0000)) - kOffset;
}

// A finished element in the register of its sum: an f32, or the bits of one. A value that is later
// encoded in fewer bits is rounded to odd here (toward zero, with the last bit set if bits were
// lost), so that the two roundings equal a single one.
__device__ __forceinline__ float Finished(float x, bool) { return x; }
__device__ __forceinline__ int32_t Finished(double x, bool is_encoded_later) {
  if (!is_encoded_later) return __float_as_int(__double2float_rn(x));
  const float towards_zero = __double2float_rz(x);
  const bool is_exact = static_cast<double>(towards_zero) == x || x != x;
  return __float_as_int(towards_zero) | (is_exact ? 0 : 1);
}

// The sums of one instruction: two by two neighbours in a line, those of `row` and then those of
// row + 8, in every eighth column from `column` on. Sums beyond D use the terms of their neighbours
// in D, and are not stored. Each step handles kPart sums together, so that their loads overlap, but
// no more than fit the registers.
template <typename Sum, int kSums, int kPart, bool kActivates>
class RegisterEpilogue {
 public:
  using T = EpilogueType<Sum>;
  static constexpr int kColumns = kPart / 2;
  using Terms = ColumnTerms<kColumns>;

  __device__ RegisterEpilogue(const EpilogueParameters& parameters, int64_t batch, int row,
                              int column)
      : parameters_(parameters),
        c_(parameters.c.data + batch * parameters.c.batch_stride_bytes),
        rows_{WithinRows(row), WithinRows(row + 8)},
        column_(column) {}

  // terms_of(offsets) returns the terms of a part's columns, which are `offsets(i)` from `column`.
  // Sums are replaced by the result of Finished.
  template <typename TermsOf>
  __device__ __forceinline__ void Run(const TermsOf& terms_of, Sum (&sums)[kSums]) const {
    const bool has_bias_of_rows = parameters_.bias_axis == BiasAxis::kRows;
    const bool has_bias_of_columns = parameters_.bias_axis == BiasAxis::kColumns;
    float bias_of_rows[2] = {0, 0};
    if (has_bias_of_rows) {
      WithUsualType(parameters_.bias_type, [&]<ElementType kType>() {
        for (int i = 0; i < 2; ++i) {
          bias_of_rows[i] = UsualElement<kType>(parameters_.bias, rows_[i]);
        }
      });
    }
    float scale_of_rows[2] = {1, 1};
    if (parameters_.a_scale.values != nullptr) {
      for (int i = 0; i < 2; ++i) {
        scale_of_rows[i] = parameters_.a_scale.values[parameters_.a_scale.varies ? rows_[i] : 0];
      }
    }
    const T alpha = static_cast<T>(parameters_.alpha);
    const bool is_encoded_later = parameters_.d.type != ElementType::kF32;
#pragma unroll
    for (int part = 0; part < kSums; part += kPart) {
      T elements[kPart];
#pragma unroll
      for (int i = 0; i < kPart; ++i) elements[i] = Widened(sums[part + i]);
      Terms terms;
      if (parameters_.has_scales || has_bias_of_columns) {
        terms = terms_of([part](int i) { return OffsetOf(part, i); });
      }
      if (parameters_.has_scales) {
        ForPart(elements, [&](int row, int i, T& x) {
          x *= static_cast<T>(scale_of_rows[row]) * static_cast<T>(terms.scales[i]);
        });
      }
      ForPart(elements, [&](int, int, T& x) { x *= alpha; });  // 1 changes nothing.
      if (parameters_.c.data != nullptr) AddC(part, elements);
      if (has_bias_of_rows) {
        ForPart(elements, [&](int row, int, T& x) { x += static_cast<T>(bias_of_rows[row]); });
      } else if (has_bias_of_columns) {
        ForPart(elements, [&](int, int i, T& x) { x += static_cast<T>(terms.biases[i]); });
      }
      if (parameters_.activation == Activation::kRelu) {
        ForPart(elements, [](int, int, T& x) { x = x < 0 ? 0 : x; });
      }
#pragma unroll
      for (int i = 0; i < kPart; ++i) sums[part + i] = Finished(elements[i], is_encoded_later);
    }
    // After the loop, so that products without such an activation skip it with one branch.
    if constexpr (kActivates) {
      switch (parameters_.activation) {
        case Activation::kGeluErf: Activate<Activation::kGeluErf>(sums); break;
        case Activation::kGeluTanh: Activate<Activation::kGeluTanh>(sums); break;
        case Activation::kSilu: Activate<Activation::kSilu>(sums); break;
        default: break;
      }
    }
  }

 private:
  static_assert(kSums % kPart == 0 && kPart % 4 == 0);

  // D has fewer than 2^31 rows and columns.
  __device__ int WithinRows(int row) const { return min(row, static_cast<int>(parameters_.m) - 1); }
  // The offset of column `i` of a part from the first column.
  static __device__ constexpr int OffsetOf(int part, int i) { return part * 2 + i / 2 * 8 + i % 2; }

  // body(which of the two rows, which of the part's columns, element)
  template <typename Body>
  static __device__ __forceinline__ void ForPart(T (&elements)[kPart], const Body& body) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int row = 0; row < 2; ++row) body(row, i, elements[i / 2 * 4 + row * 2 + i % 2]);
    }
  }

  // The code of an activation is long, so it is a loop: each round activates the first elements and
  // moves them behind the others, until all are in their places again.
  template <Activation kActivation>
  static __device__ __forceinline__ void Activate(Sum (&elements)[kSums]) {
#pragma unroll 1
    for (int part = 0; part < kSums; part += kPart) {
      Sum activated[kPart];
#pragma unroll
      for (int i = 0; i < kPart; ++i) activated[i] = gemmd::Activate(kActivation, elements[i]);
#pragma unroll
      for (int i = kPart; i < kSums; ++i) elements[i - kPart] = elements[i];
#pragma unroll
      for (int i = 0; i < kPart; ++i) elements[kSums - kPart + i] = activated[i];
    }
  }

  __device__ __forceinline__ void AddC(int part, T (&elements)[kPart]) const {
    const int64_t stride = parameters_.c.line_stride_bytes;
    const bool is_row_major = parameters_.c.order == Order::kRowMajor;
    const T beta = static_cast<T>(parameters_.beta);
    WithUsualType(parameters_.c.type, [&]<ElementType kType>() {
      float of_c[2][kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = min(column_ + OffsetOf(part, i), static_cast<int>(parameters_.n) - 1);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int64_t line = is_row_major ? rows_[row] : column;
          of_c[row][i] =
              UsualElement<kType>(c_ + line * stride, is_row_major ? column : rows_[row]);
        }
      }
      ForPart(elements, [&](int row, int i, T& x) { x += beta * static_cast<T>(of_c[row][i]); });
    });
  }

  const EpilogueParameters& parameters_;
  const std::byte* const c_;
  const int rows_[2];
  const int column_;
};

}  // namespace gemmd
