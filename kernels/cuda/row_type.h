// SPDX-License-Identifier: Apache-2.0
//
// A row as a type: kernels are templates on a row's values, which profilers show. The first row of
// f16, for example, has the type
//   Row<Instruction<mma, 16, 8, 16, f32, f16, f16, f32, ...>, Tile<192, 256, 64>, Warps<2, 4>,
//       Ring<4>, Cluster<2>, Promotion<0>, SplitsF32<false>, LinesAcross<Across::kNone>,
//       ScalesSums<false>>
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "kernels/cuda/row.h"

namespace gemmd::row_type {

template <auto kOf>
struct Word {
  static constexpr auto kValue = kOf;
};

struct mma : Word<gemmd::mma::Family::kMma> {};
struct mma_sp : Word<gemmd::mma::Family::kMmaSparse> {};
struct wmma : Word<gemmd::mma::Family::kWmma> {};
struct wgmma : Word<gemmd::mma::Family::kWgmma> {};
struct wgmma_sp : Word<gemmd::mma::Family::kWgmmaSparse> {};
using Families = std::tuple<mma, mma_sp, wmma, wgmma, wgmma_sp>;

struct f64 : Word<ElementType::kF64> {};
struct f32 : Word<ElementType::kF32> {};
struct tf32 : Word<ElementType::kTf32> {};
struct f16 : Word<ElementType::kF16> {};
struct bf16 : Word<ElementType::kBf16> {};
struct e4m3 : Word<ElementType::kE4m3> {};
struct e5m2 : Word<ElementType::kE5m2> {};
struct e3m2 : Word<ElementType::kE3m2> {};
struct e2m3 : Word<ElementType::kE2m3> {};
struct e2m1 : Word<ElementType::kE2m1> {};
struct s8 : Word<ElementType::kS8> {};
struct u8 : Word<ElementType::kU8> {};
struct s4 : Word<ElementType::kS4> {};
struct u4 : Word<ElementType::kU4> {};
struct b1 : Word<ElementType::kB1> {};
struct s32 : Word<ElementType::kS32> {};
using Types =
    std::tuple<f64, f32, tf32, f16, bf16, e4m3, e5m2, e3m2, e2m3, e2m1, s8, u8, s4, u4, b1, s32>;

// Finds the word for a value among words in the order of the enumeration.
template <auto kOf, typename Words>
struct WordOf {
  using Type = std::tuple_element_t<static_cast<size_t>(kOf), Words>;
  static_assert(Type::kValue == kOf, "words are in the order of the enumeration");
};
template <gemmd::mma::Family kOf>
using FamilyWord = typename WordOf<kOf, Families>::Type;
template <ElementType kOf>
using TypeWord = typename WordOf<kOf, Types>::Type;

// Packs the qualifiers, which are all but the shape and the types, into one number.
constexpr uint32_t QualifiersOf(const gemmd::mma::Instruction& instruction) {
  uint32_t all = static_cast<uint32_t>(instruction.min_target);
  const auto append = [&](int bits, auto value) {
    all = all << bits | static_cast<uint32_t>(value);
  };
  append(1, instruction.a_layout);
  append(1, instruction.b_layout);
  append(2, instruction.rounding);
  append(1, instruction.saturates);
  append(2, instruction.bit_count);
  append(3, instruction.kind);
  append(2, instruction.scale);
  append(3, instruction.scales);
  return all;
}

constexpr void SetQualifiers(uint32_t all, gemmd::mma::Instruction& instruction) {
  const auto take = [&]<typename Value>(int bits, Value& value) {
    value = static_cast<Value>(all & ((1U << bits) - 1));
    all >>= bits;
  };
  take(3, instruction.scales);
  take(2, instruction.scale);
  take(3, instruction.kind);
  take(2, instruction.bit_count);
  take(1, instruction.saturates);
  take(2, instruction.rounding);
  take(1, instruction.b_layout);
  take(1, instruction.a_layout);
  instruction.min_target = static_cast<int16_t>(all);
}

template <typename Family, int kM, int kN, int kK, typename D, typename A, typename B, typename C,
          uint32_t kQualifiers>
struct Instruction {
  static constexpr gemmd::mma::Instruction Make() {
    gemmd::mma::Instruction made;
    made.family = Family::kValue;
    made.m = kM;
    made.n = kN;
    made.k = kK;
    made.a = A::kValue;
    made.b = B::kValue;
    made.c = C::kValue;
    made.d = D::kValue;
    SetQualifiers(kQualifiers, made);
    return made;
  }
};

template <int kM, int kN, int kK>
struct Tile {
  static constexpr gemmd::Tile kValue = {kM, kN, kK};
};

template <int kDown, int kAcross>
struct Warps {
  static constexpr int kM = kDown;
  static constexpr int kN = kAcross;
};

template <int kOf>
struct Plain {
  static constexpr Pipeline kPipeline = Pipeline::kPlain;
  static constexpr int kStages = kOf;
};
template <int kOf>
struct Ring {
  static constexpr Pipeline kPipeline = Pipeline::kRing;
  static constexpr int kStages = kOf;
};
template <int kOf>
struct Warpgroups {
  static constexpr Pipeline kPipeline = Pipeline::kWarpgroups;
  static constexpr int kStages = kOf;
};
template <int kOf>
struct Turns {
  static constexpr Pipeline kPipeline = Pipeline::kTurns;
  static constexpr int kStages = kOf;
};
template <Pipeline kOf, int kStages>
struct StagesOf;
template <int kStages>
struct StagesOf<Pipeline::kPlain, kStages> {
  using Type = Plain<kStages>;
};
template <int kStages>
struct StagesOf<Pipeline::kRing, kStages> {
  using Type = Ring<kStages>;
};
template <int kStages>
struct StagesOf<Pipeline::kWarpgroups, kStages> {
  using Type = Warpgroups<kStages>;
};
template <int kStages>
struct StagesOf<Pipeline::kTurns, kStages> {
  using Type = Turns<kStages>;
};

template <int kOf>
struct Cluster {
  static constexpr int kBlocks = kOf;
};

template <int kOf>
struct Promotion {
  static constexpr int kK = kOf;
};

template <bool kOf>
struct SplitsF32 {
  static constexpr bool kValue = kOf;
};

template <Across kOf>
struct LinesAcross {
  static constexpr Across kValue = kOf;
};

template <bool kOf>
struct ScalesSums {
  static constexpr bool kValue = kOf;
};

template <typename InstructionType, typename TileType, typename WarpsType, typename Stages,
          typename ClusterType, typename PromotionType, typename SplitType, typename AcrossType,
          typename ScalesType>
struct Row {
  static constexpr CudaRow Make() {
    CudaRow row;
    row.instruction = InstructionType::Make();
    row.tile = TileType::kValue;
    row.warps_m = WarpsType::kM;
    row.warps_n = WarpsType::kN;
    row.stages = Stages::kStages;
    row.cluster = ClusterType::kBlocks;
    row.pipeline = Stages::kPipeline;
    row.promotion_k = PromotionType::kK;
    row.splits_f32 = SplitType::kValue;
    row.across = AcrossType::kValue;
    row.scales_sums = ScalesType::kValue;
    return row;
  }
};

// The type of row `kAt` of an array of rows.
template <const auto& kRows, size_t kAt>
struct RowAt {
  static constexpr CudaRow kOf = kRows[kAt];
  static constexpr gemmd::mma::Instruction kInstruction = kOf.instruction;
  using Type = Row<
      Instruction<FamilyWord<kInstruction.family>, kInstruction.m, kInstruction.n, kInstruction.k,
                  TypeWord<kInstruction.d>, TypeWord<kInstruction.a>, TypeWord<kInstruction.b>,
                  TypeWord<kInstruction.c>, QualifiersOf(kInstruction)>,
      Tile<kOf.tile.m, kOf.tile.n, kOf.tile.k>, Warps<kOf.warps_m, kOf.warps_n>,
      typename StagesOf<kOf.pipeline, kOf.stages>::Type, Cluster<kOf.cluster>,
      Promotion<kOf.promotion_k>, SplitsF32<kOf.splits_f32>, LinesAcross<kOf.across>,
      ScalesSums<kOf.scales_sums>>;
  static_assert(Type::Make() == kOf, "the type says all of the row");
};

}  // namespace gemmd::row_type
