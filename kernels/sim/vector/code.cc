// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>

#include "kernels/sim/scalar.h"
#include "kernels/sim/vector/runs.h"
#include "kernels/sim/vector/simple.h"

namespace gemmd::sim {
namespace {

constexpr int kMaxProducts = 32;  // In one block.

}  // namespace

const VectorCode* Avx2Code() {
  // Every processor with AVX2 has F16C, for which clang 14 has no check.
  static const bool can_run = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                              __builtin_cpu_supports("popcnt");
  return can_run ? &kAvx2Code : nullptr;
}

const VectorCode* Avx512Code() {
  static const bool can_run = Avx2Code() != nullptr && __builtin_cpu_supports("avx512f") &&
                              __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512dq");
  return can_run ? &kAvx512Code : nullptr;
}

uint32_t PlainBlock(const FusedRun& run, int first, int row_base, int lane, uint32_t addend) {
  const mma::Instruction& instruction = *run.instruction;
  const mma::Arithmetic& arithmetic = *run.arithmetic;
  const auto decode = [&](ElementType type, uint32_t bits) {
    return arithmetic.widens_to_f16 ? Decode(ElementType::kF16, F16FromFp8(type, bits))
                                    : Decode(type, bits);
  };
  std::array<Product, kMaxProducts> products;
  const auto count = static_cast<size_t>(arithmetic.block);
  for (size_t i = 0; i < count; ++i) {
    const int place = first + static_cast<int>(i);
    const int row = run.a_rows != nullptr ? run.a_rows[place] : row_base + place % run.products;
    products[i].a = decode(instruction.a, run.a_bits[place]);
    products[i].b = decode(instruction.b, run.b_bits[int64_t{row} * kPanel + lane]);
  }
  return FusedSum(arithmetic, std::span<const Product>(products).first(count), addend);
}

void PlainF64(const F64Run& run) {
  for (int64_t i = 0; i < kF64Rows; ++i) {
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      double& sum = run.sums[i * run.sums_stride + lane];
      for (int64_t k = 0; k < run.depth; ++k) {
        sum = std::bit_cast<double>(MultiplyAddF64(
            std::bit_cast<uint64_t>(run.a[i * run.a_stride + k]),
            std::bit_cast<uint64_t>(run.b[k * kPanel + lane]), std::bit_cast<uint64_t>(sum)));
      }
    }
  }
}

}  // namespace gemmd::sim
