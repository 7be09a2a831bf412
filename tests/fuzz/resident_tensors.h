// SPDX-License-Identifier: Apache-2.0
//
// Tensors that requests may name. No target uploads, deletes or writes one, so an input does the
// same each time.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>

#include "kernels/problem.h"
#include "server/store/tensor_store.h"
#include "tests/testing/fake_clock.h"

namespace gemmd::fuzz {

struct ResidentTensor {
  const char* name;
  ElementType type;
  int64_t rows;
  int64_t columns;
  Order order = Order::kRowMajor;
  int64_t matrices = 1;
  size_t factors = 0;
  bool is_sparse = false;
};

inline constexpr ResidentTensor kResidentTensors[] = {
    {"weights", ElementType::kF16, 16, 16},
    {"by columns", ElementType::kF16, 16, 16, Order::kColumnMajor},
    {"batch", ElementType::kF16, 16, 16, Order::kRowMajor, 3},
    {"sparse", ElementType::kF16, 16, 16, Order::kRowMajor, 1, 0, true},
    {"scaled", ElementType::kS8, 16, 16, Order::kRowMajor, 1, 1},
    {"scaled rows", ElementType::kE4m3, 16, 32, Order::kRowMajor, 1, 16},
    {"scaled columns", ElementType::kE4m3, 32, 16, Order::kRowMajor, 1, 16},
    {"bytes", ElementType::kS8, 16, 16},
    {"halves of bytes", ElementType::kS4, 16, 16},
    {"bits", ElementType::kB1, 16, 128},
    {"sum", ElementType::kF32, 16, 16},
    {"batch of sums", ElementType::kF32, 16, 16, Order::kRowMajor, 3},
    {"count", ElementType::kS32, 16, 16},
    {"nothing", ElementType::kF32, 0, 16},
};

struct ResidentTensors {
  // The tensors of this process.
  static ResidentTensors& Get();

  ResidentTensors();
  std::string token() const { return session.token().ToHex(); }

  FakeClock clock;
  TensorStore store;
  const TensorStore::SessionUse session;
};

}  // namespace gemmd::fuzz
