// SPDX-License-Identifier: Apache-2.0
//
// Stores the sums of a narrow row: each thread stores its own, because D is too small, compared
// with the operands, to justify shared memory. Stores D if its epilogue is only alpha, or
// RegisterEpilogue applies; for any other product, stores the sums in the workspace, from which
// LaunchEpilogueAlone makes D.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/epilogue/epilogue.cuh"
#include "kernels/cuda/device/epilogue/register_epilogue.cuh"
#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/mainloop/row_constants.cuh"

namespace gemmd {

template <typename Row>
class WarpgroupElements {
 public:
  static constexpr CudaRow kOf = kRow<Row>;
  using Sum = WarpgroupSum<Row>;
  static constexpr int kDown = InstructionsDown(kOf);
  static constexpr int kSums = kWarpgroupSums<Row>;
  static_assert(kDown == 1 && WarpgroupsOf(kOf) == 1);

  // `thread` is a number within the warpgroup.
  __device__ WarpgroupElements(const MmaParameters& parameters, uint32_t, int, int thread)
      : parameters_(parameters), thread_(thread) {}

  // Loads nothing: a narrow row has few columns.
  struct Ahead {};
  __device__ Ahead Prepare(const Place&) const { return {}; }

  // Overwrites the sums.
  __device__ void Run(const Place& place, const Ahead&, Sum (&sums)[kDown][kSums]) const {
    if constexpr (HasRoomToFinish(kOf)) {
      if (parameters_.finishes_sums) FinishSums(place, sums[0]);
    }
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {
      const mma::Position at = PositionInFragment<Row, mma::Operand::kD>(thread_, i);
      const int64_t row = place.row + at.row;
      const int64_t column = place.column + at.column;
      if (row < parameters_.epilogue.m && column < parameters_.epilogue.n) {
        Store(place, row, column, sums[0][i], sums[0][i + 1]);
      }
    }
  }

  __device__ void Finish() const {}

 private:
  __device__ __forceinline__ void Store(const Place& place, int64_t row, int64_t column, Sum x0,
                                        Sum x1) const {
    const EpilogueParameters& epilogue = parameters_.epilogue;
    StoreBytes<ElementType::kE4m3>(place, row, column, x0, x1);
    StoreBytes<ElementType::kE5m2>(place, row, column, x0, x1);
    StoreBytes<ElementType::kS8>(place, row, column, x0, x1);
    if (BitsOf(epilogue.d.type) == 8) return;
    if constexpr (std::is_same_v<Sum, int32_t>) {
      if (parameters_.finishes_sums) {
        return StoreDirectly(epilogue, place.batch, row, column, Element(x0), Element(x1));
      }
    }
    StoreDirectly(epilogue, place.batch, row, column, x0, x1);
  }

  // Stores the pair if D has the type kType, one of those that only finished elements have.
  template <ElementType kType>
  __device__ __forceinline__ void StoreBytes(const Place& place, int64_t row, int64_t column,
                                             Sum x0, Sum x1) const {
    if constexpr (Stores(kOf, kType)) {
      if (parameters_.epilogue.d.type != kType) return;
      const uint16_t pair = EncodeBytePair<kType>(Element(x0), Element(x1));
      StorePair(parameters_.epilogue, place.batch, row, column, static_cast<uint8_t>(pair),
                static_cast<uint8_t>(pair >> 8));
    }
  }

  static __device__ float Element(float x) { return x; }
  static __device__ float Element(int32_t finished) { return __int_as_float(finished); }

  __device__ __forceinline__ void FinishSums(const Place& place, Sum (&sums)[kSums]) const {
    using Epilogue = RegisterEpilogue<Sum, kSums, 8, HasRoomToActivate(kOf)>;
    const mma::Position first = PositionInFragment<Row, mma::Operand::kD>(thread_, 0);
    const int column = static_cast<int>(place.column) + first.column;
    const auto terms_of = [&](const auto& offset_of) {
      return LoadColumnTerms<Epilogue::kColumns>(parameters_.epilogue,
                                                 [&](int i) { return column + offset_of(i); });
    };
    Epilogue(parameters_.epilogue, place.batch, static_cast<int>(place.row) + first.row, column)
        .Run(terms_of, sums);
  }

  const MmaParameters& parameters_;
  const int thread_;
};

}  // namespace gemmd
