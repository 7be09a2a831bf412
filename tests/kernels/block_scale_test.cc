// SPDX-License-Identifier: Apache-2.0
//
// Block factors alone: their codes, their sizes, and which problems may have them.
#include "kernels/matrix/block_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

float Decoded(FactorType type, int code) {
  const auto byte = static_cast<std::byte>(code);
  return DecodeFactor(type, &byte);
}

TEST(BlockScaleTest, Ue8m0IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(Decoded(FactorType::kUe8m0, code), std::ldexp(1.0, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(Decoded(FactorType::kUe8m0, 255)));
}

TEST(BlockScaleTest, Ue4m3IgnoresItsHighestBit) {
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3;
    const double fraction = (code & 7) / 8.0;
    const double want =
        exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
    EXPECT_EQ(Decoded(FactorType::kUe4m3, code), want) << code;
    EXPECT_EQ(Decoded(FactorType::kUe4m3, code | 0x80), want) << code;
  }
  EXPECT_TRUE(std::isnan(Decoded(FactorType::kUe4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(Decoded(FactorType::kUe4m3, 0xff)));
}

TEST(BlockScaleTest, F32LiesAnywhere) {
  std::byte bytes[8] = {};
  const float value = -1.375F;
  std::memcpy(bytes + 3, &value, sizeof(value));
  EXPECT_EQ(DecodeFactor(FactorType::kF32, bytes + 3), value);
}

TEST(BlockScaleTest, CountsShorterBlocksAtTheEnds) {
  for (int64_t lines = 1; lines <= 4; ++lines) {
    for (int64_t depth = 1; depth <= 4; ++depth) {
      for (int64_t extent = 0; extent <= 9; ++extent) {
        for (int64_t k = 0; k <= 9; ++k) {
          const BlockScale blocks = {
              .type = FactorType::kF32, .lines = lines, .depth = depth, .per_matrix = true};
          const int64_t want = (extent + lines - 1) / lines * ((k + depth - 1) / depth) * 4 * 3;
          EXPECT_EQ(FactorBytes("x", blocks, extent, k, 3).value(), want);
        }
      }
    }
  }
}

TEST(BlockScaleTest, RefusesHostileSizes) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto message = [](const BlockScale& blocks, int64_t extent, int64_t k, int64_t batch) {
    const absl::Status status = FactorBytes("a.scale.blocks", blocks, extent, k, batch).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message({.lines = 0}, 1, 1, 1), "a.scale.blocks.rows_per_block: got 0, want 1 or more");
  EXPECT_EQ(message({.depth = -1}, 1, 1, 1), "a.scale.blocks.k_per_block: got -1, want 1 or more");
  EXPECT_THAT(message({}, kMax, kMax, 1), HasSubstr("want less than 2^63 bytes of factors"));
  EXPECT_THAT(message({}, kMax / 4 + 1, 1, 1), HasSubstr("2^63"));
  EXPECT_THAT(message({.per_matrix = true}, 1 << 20, 1 << 20, kMax), HasSubstr("2^63"));
  // One block, however large it is.
  EXPECT_EQ(FactorBytes("x", {.lines = kMax, .depth = kMax}, kMax, kMax, kMax).value(), 4);
}

TEST(BlockScaleTest, PartsEndWhereABlockOfEitherEnds) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (int64_t x = 1; x <= 6; ++x) {
    for (int64_t y = 1; y <= 6; ++y) {
      for (int64_t k = 1; k <= 20; ++k) {
        const BlockScale a = {.depth = x};
        const BlockScale b = {.depth = y};
        for (int64_t first = 0; first < k; ++first) {
          int64_t end = first + 1;
          while (end < k && end % x != 0 && end % y != 0) ++end;
          EXPECT_EQ(EndOfPart(&a, &b, first, k), end);
          int64_t end_of_a = first + 1;
          while (end_of_a < k && end_of_a % x != 0) ++end_of_a;
          EXPECT_EQ(EndOfPart(&a, nullptr, first, k), end_of_a);
          EXPECT_EQ(EndOfPart(nullptr, nullptr, first, k), k);
        }
      }
    }
  }
  const BlockScale one = {.depth = kMax};
  EXPECT_EQ(EndOfPart(&one, &one, kMax - 2, kMax - 1), kMax - 1);
}

Problem ScaledProblem(ElementType a, ElementType b) {
  Problem problem;
  problem.m = 3;
  problem.n = 5;
  problem.k = 70;
  problem.a = TightLayout("a", a, Order::kRowMajor, 3, 70).value();
  problem.b = TightLayout("b", b, Order::kColumnMajor, 70, 5).value();
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 3, 5).value();
  problem.accumulation = DefaultAccumulation(a, b).value();
  problem.a_scale = ScaleKind::kBlocks;
  problem.a_blocks = {.type = FactorType::kUe8m0, .lines = 1, .depth = 32};
  return problem;
}

TEST(BlockScaleTest, ValidatesTheTypesOfOperands) {
  using enum ElementType;
  for (const ElementType type : {kE4m3, kE5m2, kE3m2, kE2m3, kE2m1}) {
    EXPECT_THAT(Validate(ScaledProblem(type, kE4m3)), IsOk()) << NameOf(type);
  }
  for (const ElementType type : {kF64, kF32, kTf32, kF16, kBf16, kS8, kU8, kS4, kU4, kB1}) {
    const absl::Status status = Validate(ScaledProblem(type, type));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << NameOf(type);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a.scale.blocks: got factors"));
  }
}

TEST(BlockScaleTest, CountsTheirBytesAsRead) {
  Problem problem = ScaledProblem(ElementType::kE4m3, ElementType::kE4m3);
  EXPECT_EQ(BytesRead(problem), 3 * 70 + 70 * 5 + 3 * 3);
  problem.b_scale = ScaleKind::kBlocks;
  problem.b_blocks = {.type = FactorType::kF32, .lines = 2, .depth = 7};
  EXPECT_EQ(BytesRead(problem), 3 * 70 + 70 * 5 + 3 * 3 + 3 * 10 * 4);
  EXPECT_EQ(Describe(problem),
            "3x5x70 f32 <- e4m3 row scaled ue8m0 1x32, e4m3 column scaled f32 2x7");
  const Problem transposed = Transposed(problem);
  EXPECT_EQ(transposed.a_blocks, problem.b_blocks);
  EXPECT_EQ(transposed.b_blocks, problem.a_blocks);
  problem.alpha = 0;
  EXPECT_EQ(BytesRead(problem), 0);
}

// Parts that begin at multiples of the granule have whole blocks, and as many lines as wanted.
TEST(BlockScaleTest, GranulesDivideNoBlock) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t lines : {1, 2, 3, 8, 96, 100, 128, 255, 256, 1000, 5000}) {
    for (const int64_t granule : {1, 8, 256, 2048}) {
      for (const int64_t extent : {1, 100, 256, 4500, 100000}) {
        const BlockScale blocks = {.lines = lines, .depth = 128};
        const int64_t got = blocks.GranuleOf(granule, extent);
        if (got == extent) continue;  // One part.
        EXPECT_EQ(got % granule, 0) << lines << " of " << extent << " by " << granule;
        for (int64_t first = 0; first < extent; first += got) {
          EXPECT_EQ(first == 0 || lines >= extent ? 0 : first % lines, 0)
              << lines << " of " << extent << " by " << granule;
        }
      }
    }
  }
  const auto granule = [](int64_t lines, int64_t wanted, int64_t extent) {
    return BlockScale{.lines = lines}.GranuleOf(wanted, extent);
  };
  EXPECT_EQ(granule(96, 256, 4500), 768);
  EXPECT_EQ(granule(100, 256, 4500), 4500);
  EXPECT_EQ(granule(100, 256, 1 << 20), 6400);
  EXPECT_EQ(granule(kMost, 256, 4500), 256);
  EXPECT_EQ(granule(kMost - 1, 2048, kMost), kMost);
}

// Kernels that cannot multiply by such factors refuse them: they never compute the product without
// them.
TEST(BlockScaleTest, NoOtherKernelTakesThem) {
  int takers = 0;
  int promoting = 0;
  for (const Kernel& kernel : Catalog()) {
    Problem problem = ScaledProblem(ElementType::kE4m3, ElementType::kE4m3);
    if (kernel.a != problem.a.type || kernel.b != problem.b.type) continue;
    const absl::Status status = kernel.supports(problem);
    if (kernel.recipe.block_scaling == BlockScaling::kNone) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << kernel.name;
      EXPECT_THAT(std::string(status.message()), HasSubstr("a.scale.blocks")) << kernel.name;
      continue;
    }
    if (kernel.recipe.block_scaling == BlockScaling::kPromotions) {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("a.scale.blocks.k_per_block: got 32, want a multiple of 128"))
          << kernel.name;
      for (const int64_t depth : {1, 70, 127, 128, 256, 300, 1280}) {
        problem.a_blocks.depth = depth;
        EXPECT_EQ(kernel.supports(problem).ok(), depth % 128 == 0) << kernel.name << ", " << depth;
      }
      ++promoting;
      continue;
    }
    takers += status.ok() ? 1 : 0;
    problem.a_blocks.type = FactorType::kF32;
    EXPECT_EQ(kernel.supports(problem).ok(), kernel.device_kind == DeviceKind::kCpu) << kernel.name;
    problem.a_blocks = {.type = FactorType::kUe8m0, .lines = 4, .depth = 33};
    EXPECT_EQ(kernel.supports(problem).ok(), kernel.device_kind == DeviceKind::kCpu) << kernel.name;
  }
  EXPECT_GE(takers, 2);
  EXPECT_GE(promoting, 2);
}

}  // namespace
}  // namespace gemmd
