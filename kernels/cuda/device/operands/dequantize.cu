// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/dequantize.h"
#include "kernels/cuda/device/ptx/weights_ptx.cuh"
#include "kernels/cuda/operands/pack_lines.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// A warp takes a part of a line, a thread as many of its elements as one read brings.
constexpr int kPart = 32;
constexpr int kLinesAtOnce = kBlockThreads / kPart;

template <ElementType kFrom>
constexpr int kReads = PackForm<BitsOf(kFrom), BitsOf(kFrom) == 6 ? 8 : BitsOf(kFrom)>::kReads;

__device__ float FactorAt(const DequantizeJob& job, const std::byte* factors, int64_t at) {
  if (job.factor_type == FactorType::kF32) return reinterpret_cast<const float*>(factors)[at];
  return DecodeFactorCode(job.factor_type, static_cast<uint32_t>(factors[at]));
}

// The value of an element whose code is in the low bits. Conversions of integers have a quarter of
// the rate of other operations, so an integer becomes the fraction of an f32.
template <ElementType kFrom>
__device__ float ValueOf(uint64_t code) {
  if constexpr (IsFloat(kFrom)) {
    return DecodeCode<kFrom>(code);
  } else {
    constexpr uint32_t kMask = (uint32_t{1} << BitsOf(kFrom)) - 1;
    constexpr uint32_t kSign = FactsOf(kFrom).is_signed ? uint32_t{1} << (BitsOf(kFrom) - 1) : 0;
    const uint32_t raised = (static_cast<uint32_t>(code) & kMask) ^ kSign;
    return __uint_as_float(0x4b00'0000 | raised) - (0x1p23F + kSign);
  }
}

template <ElementType kFrom>
__device__ float ElementAt(const Chunk& chunk, int index) {
  constexpr int kBits = BitsOf(kFrom);
  const int first = index * kBits;
  uint64_t code = first < 64 ? chunk.low >> first : chunk.high >> first % 64;
  if (first < 64 && first + kBits > 64) code |= chunk.high << (64 - first);
  return ValueOf<kFrom>(code);
}

// Divisions of 64 bits take many operations.
__device__ int64_t Divide(int64_t a, int64_t b) {
  const bool are_short = (a | b) >> 32 == 0;
  return are_short ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

// Multiplies by the factors of neighbouring elements of a line.
template <int kElements>
__device__ void Scale(const DequantizeJob& job, const std::byte* factors, int64_t first,
                      float (&values)[kElements]) {
  int64_t block = Divide(first, job.elements_of_block);
  int64_t left = (block + 1) * job.elements_of_block - first;
  float factor = FactorAt(job, factors, block * job.factors_of_element);
#pragma unroll
  for (int e = 0; e < kElements; ++e, --left) {
    if (left == 0) {
      ++block;
      left = job.elements_of_block;
      if (first + e < job.length) factor = FactorAt(job, factors, block * job.factors_of_element);
    }
    values[e] *= factor;
  }
}

template <ElementType kFrom, ElementType kTo>
__global__ void __launch_bounds__(kBlockThreads)
    DequantizeKernel(const __grid_constant__ DequantizeJob job, int64_t parts) {
  constexpr int kElements = kReads<kFrom>;
  constexpr int kOfChunk = 8 * kChunkBytes / BitsOf(kTo);
  const int64_t lines = job.matrices * job.lines;
  const int64_t pieces = parts * CeilOf(lines, kLinesAtOnce);
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t group = Divide(piece, parts);
    const int64_t at = group * kLinesAtOnce + threadIdx.x / kPart;
    const int64_t first = ((piece - group * parts) * kPart + threadIdx.x % kPart) * kElements;
    if (at >= lines || first >= job.length) continue;
    const int64_t matrix = job.matrices == 1 ? 0 : Divide(at, job.lines);
    const int64_t line = at - matrix * job.lines;
    const std::byte* const source = job.source + matrix * job.source_batch_stride +
                                    line * job.source_line_stride + first / 8 * BitsOf(kFrom);
    const int64_t left = job.length - first;
    const int64_t bits = (left < kElements ? left : kElements) * BitsOf(kFrom);
    const Chunk chunk = KeepLow(LoadChunk(source, (bits + 7) / 8, job.source_end), bits);
    float values[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) values[e] = ElementAt<kFrom>(chunk, e);
    if (job.factors != nullptr) {
      const int64_t of_line = Divide(line, job.lines_of_block) * job.factors_of_line;
      const int64_t factor_bytes = job.factor_type == FactorType::kF32 ? 4 : 1;
      Scale(job, job.factors + matrix * job.factors_batch_stride + of_line * factor_bytes, first,
            values);
    }
    std::byte* const target = job.target + matrix * job.target_batch_stride +
                              line * job.target_line_stride + first * (BitsOf(kTo) / 8);
#pragma unroll
    for (int e = 0; e < kElements; e += kOfChunk) {
      if (e >= left) break;
      uint32_t words[kOfChunk / 2];
#pragma unroll
      for (int i = 0; i < kOfChunk / 2; ++i) {
        // Elements beyond the line are zeros whatever their factor is.
        const float x0 = e + 2 * i < left ? values[e + 2 * i] : 0;
        const float x1 = e + 2 * i + 1 < left ? values[e + 2 * i + 1] : 0;
        words[i] = ptx::NarrowPair<kTo>(x0, x1);
      }
      StoreChunk(target + e * (BitsOf(kTo) / 8),
                 Chunk{Join(words[0], words[1]), Join(words[2], words[3])});
    }
  }
}

template <ElementType kFrom>
void Launch(const DequantizeJob& job, CUstream_st* stream) {
  const int64_t parts = CeilOf(job.length, kPart * kReads<kFrom>);
  const unsigned blocks = BlocksFor(parts * CeilOf(job.matrices * job.lines, kLinesAtOnce));
  if (job.to == ElementType::kF16) {
    DequantizeKernel<kFrom, ElementType::kF16><<<blocks, kBlockThreads, 0, stream>>>(job, parts);
  } else {
    DequantizeKernel<kFrom, ElementType::kBf16><<<blocks, kBlockThreads, 0, stream>>>(job, parts);
  }
}

}  // namespace

absl::Status DequantizeOnStream(const DequantizeJob& job, CUstream_st* stream) {
  WithElementType(job.from, [&]<ElementType kFrom>() {
    if constexpr (BitsOf(kFrom) >= 4 && BitsOf(kFrom) <= 8) Launch<kFrom>(job, stream);
  });
  return LaunchStatus("dequantize");
}

}  // namespace gemmd
