// SPDX-License-Identifier: Apache-2.0
//
// One product to test: a problem with the bytes of its operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/problem.h"

namespace gemmd {

struct Product {
  Problem problem;
  std::vector<std::byte> a;
  std::vector<std::byte> b;
  std::vector<std::byte> c;
  std::vector<std::byte> bias;
  std::vector<float> a_scale;
  std::vector<float> b_scale;
  std::vector<std::byte> a_factors = {};  // The factors of blocks.
  std::vector<std::byte> b_factors = {};
};

// Bytes before and after D that must not be written. D stays aligned to 256.
inline constexpr int64_t kGuardBytes = 256;

// The arguments of the product for an epilogue alone, which writes D.
inline GemmArgs EpilogueArgs(const Product& product, std::byte* d) {
  return {.problem = product.problem,
          .target = {},
          .a = nullptr,
          .b = nullptr,
          .c = product.c.data(),
          .bias = product.bias.data(),
          .a_scale = product.a_scale,
          .b_scale = product.b_scale,
          .d = d,
          .workspace = {}};
}

}  // namespace gemmd
