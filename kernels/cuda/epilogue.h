// SPDX-License-Identifier: Apache-2.0
//
// What a kernel of a GPU does with its accumulators, as plain data: an argument of the kernel. The
// arithmetic is that of kernel.h, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/problem.h"

namespace gemmd {

struct GemmArgs;  // kernels/kernel.h

// Where the batch of C or D lies. A line is a row (row major) or a column.
template <typename Byte>
struct EpilogueMatrix {
  Byte* data = nullptr;
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;
  ElementType type = ElementType::kF32;
  Order order = Order::kRowMajor;
};

// Scales along one axis of D: none (null), one for all, or one per index.
struct EpilogueScale {
  const float* values = nullptr;
  bool varies = false;
};

struct EpilogueParameters {
  int64_t m = 0;
  int64_t n = 0;
  EpilogueMatrix<std::byte> d;
  EpilogueMatrix<const std::byte> c;  // No data where beta is 0.
  const std::byte* bias = nullptr;
  EpilogueScale a_scale;
  EpilogueScale b_scale;
  double alpha = 1;
  float alpha_f32 = 1;
  double beta = 0;
  ElementType bias_type = ElementType::kF32;
  BiasAxis bias_axis = BiasAxis::kNone;
  Activation activation = Activation::kNone;
  bool has_product = true;  // False: x starts from 0; scales and alpha have no part.
  bool has_scales = false;
  bool is_plain = true;  // D is the product alone, in whatever type.
  // StoreDirectly (epilogue.cuh) does all that there is to do.
  bool stores_directly = false;
  // Pairs of elements along D's line that start at an even one are aligned to their size.
  bool pairs_are_aligned = false;
};

// `accumulators` is the type of the accumulators as the epilogue sees them: f32 (f16 ones widened),
// f64 or s32.
EpilogueParameters EpilogueOf(const GemmArgs& args, ElementType accumulators);

}  // namespace gemmd
