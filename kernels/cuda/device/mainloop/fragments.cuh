// SPDX-License-Identifier: Apache-2.0
//
// Fragments of A and B, from tiles in shared memory: loaded by ldmatrix if lanes hold 32-bit words
// along k, by 8-byte loads for f64 and m8n8k4, and by wmma's own loads for wmma.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mainloop/row_constants.cuh"
#include "kernels/cuda/device/ptx/wmma_ptx.cuh"

namespace gemmd {

// The shape of an operand's fragment for one instruction.
template <typename Row, mma::Operand kOperand>
struct FragmentShape {
  static constexpr mma::Instruction kInstruction = kRow<Row>.instruction;
  static constexpr TileLines kLines = TileLinesOf(kRow<Row>, kOperand);
  static constexpr bool kIsA = kOperand == mma::Operand::kA;
  static constexpr bool kIsF64 = kInstruction.a == ElementType::kF64;
  static constexpr bool kIsQuad = kInstruction.products() == 4;  // m8n8k4 with f16.
  static constexpr bool kIsWmma = kInstruction.family == mma::Family::kWmma;
  static constexpr int kExtent = kIsA ? kRow<Row>.instruction_rows() : kInstruction.n;
  static constexpr int kElements = mma::ElementsPerLane(kInstruction, kOperand);
  static constexpr int kWords = kIsF64 ? kElements : mma::WordsPerLane(kInstruction, kOperand);
  static constexpr int kBits = mma::ContainerBits(kInstruction, kOperand);
  static constexpr int kStepBytes = (kIsA ? kInstruction.a_columns() : kInstruction.k) * kBits / 8;
  // The numbers of instructions that a warp has side by side along the operand, and that one load
  // serves.
  static constexpr int kAll = kIsA ? InstructionsDown(kRow<Row>) : InstructionsAcross(kRow<Row>);
  static constexpr int kOfLoad = kIsQuad || kIsWmma ? 1 : InstructionsOfLoad(kRow<Row>, kOperand);
  using Word = std::conditional_t<kIsF64, double, uint32_t>;
};

// The fragments of `kCount` neighbouring instructions, for one step along k.
template <typename Row, mma::Operand kOperand, int kCount>
struct Fragments {
  using Shape = FragmentShape<Row, kOperand>;

  typename Shape::Word words[kCount][Shape::kWords];
};

// Loads a lane's fragments of an operand from a stage.
template <typename Row, mma::Operand kOperand>
class FragmentLoader {
 public:
  using Shape = FragmentShape<Row, kOperand>;
  template <int kCount>
  using Target = Fragments<Row, kOperand, kCount>;

  // `first` is the warp's first row or column in the tile; `shared` is where the operand's part of
  // the first stage begins.
  __device__ FragmentLoader(uint32_t shared, int first, int lane) : shared_(shared) {
    if constexpr (Shape::kIsQuad || Shape::kIsWmma) {
      first_ = first;
      lane_ = lane;
    } else if constexpr (Shape::kIsF64) {
      const mma::Position at = PositionInFragment<Row, kOperand>(lane, 0);
      const int line = first + LineInTile<Row>(Shape::kIsA ? at.row : at.column);
      shared_ += OffsetInTile<Row, kOperand>(line, 8 * (Shape::kIsA ? at.column : at.row));
    } else {
      // Lane 8i + j points at line j of matrix i of four. An instruction's matrices are the halves
      // of its rows for the first chunk along k, then those for the next one.
      constexpr int kHalves = Shape::kExtent / 8;
      const int matrix = lane / 8 % kOfInstruction;
      const int line =
          first + lane / 8 / kOfInstruction * Shape::kExtent + matrix % kHalves * 8 + lane % 8;
      shared_ += OffsetInTile<Row, kOperand>(line, matrix / kHalves * 16);
    }
  }

  // Loads the fragments of instructions kCount * part to kCount * (part + 1) - 1. wmma and m8n8k4
  // have one part.
  template <int kCount>
  __device__ void Load(int offset, int step, int part, Target<kCount>& target) const {
    if constexpr (Shape::kIsWmma) {
      LoadWmma(offset, step, target);
    } else if constexpr (Shape::kIsQuad) {
      LoadQuad(offset, step, target);
    } else {
      static_assert(kCount % Shape::kOfLoad == 0);
#pragma unroll
      for (int i = 0; i < kCount / Shape::kOfLoad; ++i) LoadSome(offset, step, part, i, target);
    }
  }

  // Loads the fragments that load `load` of part `part` covers.
  template <int kCount>
  __device__ void LoadSome(int offset, int step, int part, int load, Target<kCount>& target) const {
    if constexpr (Shape::kIsF64) {
      LoadF64(offset, step, part, load, target);
    } else {
      LoadMatrices(offset, step, part, load, target);
    }
  }

 private:
  static constexpr mma::Instruction kInstruction = Shape::kInstruction;
  static constexpr TileLines kLines = Shape::kLines;
  static constexpr int kOfInstruction = Shape::kExtent / 8 * (Shape::kStepBytes / 16);

  // The address `byte` bytes further along k in the lines of this lane's first fragments. The bits
  // of `byte` are 0 in those fragments' offsets along the line, so with any swizzle they can be
  // flipped instead of added.
  __device__ uint32_t AddressAlong(int offset, int byte) const {
    static_assert((kLines.line_bytes & (kLines.line_bytes - 1)) == 0);
    return (shared_ + offset) ^ byte;
  }

  template <int kCount>
  __device__ void LoadMatrices(int offset, int step, int part, int load,
                               Target<kCount>& target) const {
    static_assert(kOfInstruction <= 4 && 4 % kOfInstruction == 0);
    static_assert(kCount % Shape::kOfLoad == 0);
    constexpr int kInstructionBytes = Shape::kExtent * kLines.stride();
    uint32_t words[4];
    ptx::LoadMatrices(words, AddressAlong(offset, step * Shape::kStepBytes) +
                                 (part * kCount + load * Shape::kOfLoad) * kInstructionBytes);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      target.words[load * Shape::kOfLoad + w / kOfInstruction][w % kOfInstruction] = words[w];
    }
  }

  template <int kCount>
  __device__ void LoadF64(int offset, int step, int part, int i, Target<kCount>& target) const {
#pragma unroll
    for (int e = 0; e < Shape::kElements; ++e) {
      // Positions relative to element 0 are the same in all lanes.
      const mma::Position at = PositionInFragment<Row, kOperand>(0, e);
      const int line = (part * kCount + i) * Shape::kExtent + (Shape::kIsA ? at.row : at.column);
      const int along = step * kInstruction.k + (Shape::kIsA ? at.column : at.row);
      target.words[i][e] = __longlong_as_double(static_cast<long long>(
          ptx::LoadShared64(AddressAlong(offset, 8 * along) + line * kLines.stride())));
    }
  }

  template <int kCount>
  __device__ void LoadWmma(int offset, int step, Target<kCount>& target) const {
    constexpr int kStride = kLines.stride() * 8 / Shape::kBits;
    constexpr bool kIsAlongK = kLines.axis == LineAxis::kK;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int across = first_ + i * Shape::kExtent;
      const int along = step * kInstruction.k;
      const int line = kIsAlongK ? across : along;
      const int byte = (kIsAlongK ? along : across) * Shape::kBits / 8;
      ptx::WmmaLoad<WmmaLoadMnemonic<Row, Shape::kIsA>>(
          target.words[i], shared_ + offset + line * kLines.stride() + byte, kStride);
    }
  }

  // A lane's four elements of f16 are neighbours, along k or across it.
  template <int kCount>
  __device__ void LoadQuad(int offset, int step, Target<kCount>& target) const {
    const mma::Position at = PositionInFragment<Row, kOperand>(lane_, 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row_of_product = Shape::kIsA ? at.row + kInstruction.m * at.product : at.column;
      const int across = first_ + i * Shape::kExtent + row_of_product;
      const int along = step * kInstruction.k + (Shape::kIsA ? at.column : at.row);
      const bool is_along_k = kLines.axis == LineAxis::kK;
      const uint64_t words =
          ptx::LoadShared64(shared_ + offset +
                            OffsetInTile<Row, kOperand>(is_along_k ? across : along,
                                                        2 * (is_along_k ? along : across)));
      target.words[i][0] = static_cast<uint32_t>(words);
      target.words[i][1] = static_cast<uint32_t>(words >> 32);
    }
  }

  uint32_t shared_;  // For ldmatrix and f64, where this lane's first fragments are.
  int first_ = 0;
  int lane_ = 0;
};

}  // namespace gemmd
