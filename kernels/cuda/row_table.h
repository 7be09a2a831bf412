// SPDX-License-Identifier: Apache-2.0
//
// The table of the kernels of GPUs. A new tile is a line of TilesOf; name, limits, launcher, checks
// and benchmark follow from the row.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/cuda/row.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/support.h"

namespace gemmd {

namespace cuda_table {

inline constexpr size_t kCapacity = 1024;

struct Rows {
  std::array<CudaRow, kCapacity> rows = {};
  size_t size = 0;
};

// Extents along k in bytes of the operand that holds all of k.
struct Shape {
  int16_t m;
  int16_t n;
  int16_t k_bytes;
  int8_t warps_m;
  int8_t warps_n;
  int8_t stages;
  int8_t cluster = 1;
};

constexpr void Add(Rows& rows, const mma::Instruction& instruction, const Shape& shape) {
  CudaRow row;
  row.instruction = instruction;
  const int elements = shape.k_bytes * 8 / mma::ContainerBits(instruction, mma::Operand::kB);
  row.tile = {shape.m, shape.n,
              static_cast<int16_t>(elements < instruction.k ? instruction.k : elements)};
  row.warps_m = shape.warps_m;
  row.warps_n = shape.warps_n;
  row.stages = shape.stages;
  row.cluster = shape.cluster;
  rows.rows[rows.size++] = row;
}

// The deepest shape of a type that the tensor core of sm_90 multiplies itself: the one to be fast.
constexpr bool IsFastOnHopper(const mma::Instruction& instruction) {
  if (mma::SupportOn(instruction, mma::Chip::kSm90) != mma::Support::kNative) return false;
  if (instruction.rounding != mma::Rounding::kNearestEven) return false;
  const int k_bytes = instruction.k * BitsOf(instruction.b) / 8;
  if (instruction.family == mma::Family::kMma) {
    return instruction.m == 16 && k_bytes == (instruction.a == ElementType::kF64 ? 128 : 32);
  }
  return instruction.family == mma::Family::kMmaSparse && k_bytes == 64;
}

constexpr void AddFast(Rows& rows, const mma::Instruction& instruction) {
  if (instruction.a == ElementType::kF64) {
    Add(rows, instruction, {128, 128, 128, 4, 2, 4, 2});
    Add(rows, instruction, {128, 64, 128, 4, 2, 4});
    Add(rows, instruction, {64, 64, 128, 2, 2, 12});
    return;
  }
  if (!instruction.saturates) {
    // The largest that registers hold, the way round that keeps the smaller fragments.
    if (instruction.is_sparse()) {
      Add(rows, instruction, {256, 192, 128, 4, 2, 5, 2});
    } else {
      Add(rows, instruction, {192, 256, 128, 2, 4, 4, 2});
    }
    Add(rows, instruction, {128, 256, 128, 2, 4, 3});
    Add(rows, instruction, {256, 128, 128, 4, 2, 3});
  }
  Add(rows, instruction, {128, 128, 128, 2, 2, 3});
  Add(rows, instruction, {64, 64, 128, 2, 2, 4});
  // Few blocks, each with much of a long k under way.
  if (!instruction.saturates) Add(rows, instruction, {64, 64, 128, 2, 2, 12});
}

constexpr Rows MakeRows() {
  Rows rows;
  for (const mma::Instruction& instruction : mma::kInstructions) {
    if (instruction.is_warpgroup()) continue;
    if (IsFastOnHopper(instruction)) AddFast(rows, instruction);
    // One step of what ptxas expands fills the registers.
    const bool is_deep = instruction.is_sparse() && IsShapedNative(instruction);
    Add(rows, instruction, {64, 64, static_cast<int16_t>(is_deep ? 128 : 64), 2, 2, 3});
  }
  return rows;
}

inline constexpr size_t kSize = MakeRows().size;

constexpr std::array<CudaRow, kSize> Trim(const Rows& rows) {
  std::array<CudaRow, kSize> trimmed = {};
  for (size_t i = 0; i < kSize; ++i) trimmed[i] = rows.rows[i];
  return trimmed;
}

}  // namespace cuda_table

// Every kernel, in the order of the instructions; of one instruction the largest tile first.
inline constexpr auto kCudaRows = cuda_table::Trim(cuda_table::MakeRows());

}  // namespace gemmd
