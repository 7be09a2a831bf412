// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/issue_ceiling.h"

#include <array>

namespace gemmd::bench {
namespace {

using mma::Family;
using mma::Instruction;

// Types that the tensor core multiplies at the same rate.
enum class Rate { kNone, kHalf, kTf32, kF64, kInt8, kAnd };

Rate RateOf(const Instruction& instruction) {
  switch (instruction.a) {
    case ElementType::kF16:
    case ElementType::kBf16: return Rate::kHalf;
    case ElementType::kTf32: return Rate::kTf32;
    case ElementType::kF64: return Rate::kF64;
    case ElementType::kS8:
    case ElementType::kU8: return Rate::kInt8;
    case ElementType::kB1:
      return instruction.bit_count == mma::BitCount::kAnd ? Rate::kAnd : Rate::kNone;
    default: return Rate::kNone;
  }
}

struct Ceiling {
  Family family;
  Rate rate;
  int m;
  int k;
  double tera;
};

constexpr std::array<Ceiling, 20> kHopper = {{
    {Family::kMma, Rate::kHalf, 16, 8, 454},
    {Family::kMma, Rate::kHalf, 16, 16, 630},
    {Family::kMma, Rate::kTf32, 16, 4, 228},
    {Family::kMma, Rate::kTf32, 16, 8, 315},
    {Family::kMma, Rate::kF64, 8, 4, 32.9},
    {Family::kMma, Rate::kF64, 16, 4, 65.2},
    {Family::kMma, Rate::kF64, 16, 8, 65.9},
    {Family::kMma, Rate::kF64, 16, 16, 66.4},
    {Family::kMma, Rate::kInt8, 8, 16, 460},
    {Family::kMma, Rate::kInt8, 16, 16, 900},
    {Family::kMma, Rate::kInt8, 16, 32, 1260},
    {Family::kMma, Rate::kAnd, 8, 128, 3664},
    {Family::kMma, Rate::kAnd, 16, 128, 7176},
    {Family::kMma, Rate::kAnd, 16, 256, 10094},
    {Family::kMmaSparse, Rate::kHalf, 16, 16, 613},
    {Family::kMmaSparse, Rate::kHalf, 16, 32, 930},
    {Family::kMmaSparse, Rate::kTf32, 16, 8, 309},
    {Family::kMmaSparse, Rate::kTf32, 16, 16, 465},
    {Family::kMmaSparse, Rate::kInt8, 16, 32, 1240},
    {Family::kMmaSparse, Rate::kInt8, 16, 64, 1869},
}};

}  // namespace

std::optional<double> IssueCeilingOf(const Instruction& instruction, const Target& target) {
  constexpr int kMeasuredMultiprocessors = 132;
  const bool is_measured =
      target.chip == mma::Chip::kSm90 && target.multiprocessors == kMeasuredMultiprocessors &&
      !instruction.saturates && instruction.rounding == mma::Rounding::kNearestEven;
  if (!is_measured) return std::nullopt;
  for (const Ceiling& ceiling : kHopper) {
    if (ceiling.family == instruction.family && ceiling.rate == RateOf(instruction) &&
        ceiling.m == instruction.m && ceiling.k == instruction.k) {
      return ceiling.tera * 1e12;
    }
  }
  return std::nullopt;
}

}  // namespace gemmd::bench
