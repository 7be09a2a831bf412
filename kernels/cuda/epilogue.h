// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of a GPU kernel as plain data, passed as a kernel argument. The arithmetic is that
// of kernel.h, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix/element.h"
#include "kernels/matrix/product_options.h"

namespace gemmd {

// The tile that a block of the epilogue-only kernel writes at a time: long along D's lines.
struct EpilogueAloneTile {
  static constexpr int kLines = 8;
  static constexpr int kLength = 512;
  static constexpr int kThreads = 256;
};

struct GemmArgs;  // kernels/kernel.h
struct Problem;   // kernels/problem.h

// The layout of the matrices of C or D. A line is a row (row major) or a column.
template <typename Byte>
struct EpilogueMatrix {
  Byte* data = nullptr;
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;
  ElementType type = ElementType::kF32;
  Order order = Order::kRowMajor;
};

// The scales along one axis of D: none (null), one for all, or one for each index.
struct EpilogueScale {
  const float* values = nullptr;
  bool varies = false;
};

struct EpilogueParameters {
  int64_t m = 0;
  int64_t n = 0;
  EpilogueMatrix<std::byte> d;
  EpilogueMatrix<const std::byte> c;  // No data if beta is 0.
  const std::byte* bias = nullptr;
  EpilogueScale a_scale;
  EpilogueScale b_scale;
  double alpha = 1;
  float alpha_f32 = 1;
  double beta = 0;
  ElementType bias_type = ElementType::kF32;
  BiasAxis bias_axis = BiasAxis::kNone;
  Activation activation = Activation::kNone;
  bool has_product = true;  // If false, x starts from 0; scales and alpha are not used.
  bool has_scales = false;
  bool is_plain = true;  // D is the plain product, in any type.
  // Whether StoreDirectly (epilogue.cuh) does the whole epilogue.
  bool stores_directly = false;
  // Whether pairs of elements along D's line that start at an even one are aligned to their size.
  bool pairs_are_aligned = false;
};

// Whether StoreDirectly does the whole epilogue of a product.
bool StoresDirectly(const Problem& problem, ElementType accumulators);

// Whether RegisterEpilogue (register_epilogue.cuh) can apply the epilogue (possibly only alpha), if
// the row stores D's type and has room for the activation (HasRoomToActivate).
bool FitsRegisters(const Problem& problem);

// `accumulators` is the type of the accumulators as the epilogue gets them: f32 (f16 is widened),
// f64 or s32.
EpilogueParameters EpilogueOf(const GemmArgs& args, ElementType accumulators);

}  // namespace gemmd
