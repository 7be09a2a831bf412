// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/epilogue/epilogue.cuh"
#include "kernels/cuda/device/epilogue/exact_sums.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/mainloop/abort.cuh"
#include "kernels/cuda/device/ptx/ptx.cuh"
#include "kernels/cuda/epilogue.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/ptx.h"

namespace gemmd {
namespace {

// A block computes a tile of sums with f64 instructions, which give the bits of fused multiply-adds
// in ascending k. A warp has 16 rows and 32 columns of the tile.
constexpr mma::Instruction FindInstruction() {
  for (const mma::Instruction& instruction : mma::kInstructions) {
    if (instruction.family == mma::Family::kMma && instruction.a == ElementType::kF64 &&
        instruction.k == 16 && instruction.rounding == mma::Rounding::kNearestEven) {
      return instruction;
    }
  }
  return {};
}
constexpr mma::Instruction kInstruction = FindInstruction();
static_assert(kInstruction.m == 16 && kInstruction.n == 8);
struct F64 {
  static constexpr mma::PtxMnemonic kSource = mma::PtxOf(kInstruction);
};

constexpr int kTile = 64;
constexpr int kStride = kTile + 4;  // Spreads a fragment's elements over all banks.
constexpr int kDepth = kInstruction.k;
constexpr int kAcross = 4;  // Instructions of a warp.
constexpr int kWarpsDown = kTile / kInstruction.m;
static_assert(kWarpsDown * kTile / (kAcross * kInstruction.n) * 32 == kBlockThreads);
constexpr int kEach = kTile * kDepth / kBlockThreads;  // Elements that a thread loads.
constexpr int kDepthsBetweenLooks = 256;               // For an abort.

// One operand as lines along k.
struct ExactLines {
  const std::byte* data = nullptr;
  int64_t line_bytes = 0;  // From line to line, from element to element, from matrix to matrix.
  int64_t element_bytes = 0;
  int64_t matrix_bytes = 0;
  int64_t lines = 0;
};

struct ExactJob {
  ExactLines a;
  ExactLines b;
  int64_t k = 0;
  int64_t tiles_of_row = 0;
  int64_t tiles_of_matrix = 0;
  int64_t tiles = 0;
  SplitParameters split = {};
  SumsInMemory sums;
  AbortWord abort;
};

// Loads a thread's part of an operand's tile: neighbouring threads load neighbours in memory.
class Bringer {
 public:
  __device__ Bringer(const ExactLines& of, int64_t matrix, int64_t first_line, int64_t k)
      : of_(of), data_(of.data + matrix * of.matrix_bytes), first_line_(first_line), k_(k) {}

  __device__ void Load(int64_t first_k, float (&elements)[kEach]) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t line = first_line_ + LineOf(i);
      const int64_t k = first_k + DepthOf(i);
      elements[i] = 0;
      if (line < of_.lines && k < k_) {
        elements[i] =
            *reinterpret_cast<const float*>(data_ + line * of_.line_bytes + k * of_.element_bytes);
      }
    }
  }
  __device__ void Stage(const float (&elements)[kEach], double (*staged)[kStride]) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) staged[DepthOf(i)][LineOf(i)] = elements[i];
  }

 private:
  __device__ bool is_along() const { return of_.element_bytes == sizeof(float); }
  __device__ int Number(int i) const { return static_cast<int>(threadIdx.x) + i * kBlockThreads; }
  __device__ int LineOf(int i) const { return is_along() ? Number(i) / kDepth : Number(i) % kTile; }
  __device__ int DepthOf(int i) const {
    return is_along() ? Number(i) % kDepth : Number(i) / kTile;
  }

  const ExactLines& of_;
  const std::byte* data_;
  int64_t first_line_;
  int64_t k_;
};

// Writes a sum to the kept sums, or the resulting element of D.
__device__ void StoreSum(const EpilogueParameters& parameters, const SumsInMemory& sums,
                         int64_t matrix, int64_t row, int64_t column, float sum) {
  if (sums.data != nullptr) {
    std::byte* const line = const_cast<std::byte*>(sums.data) + matrix * sums.batch_stride_bytes +
                            row * sums.line_stride_bytes;
    reinterpret_cast<float*>(line)[column] = sum;
    return;
  }
  const float x = ApplyEpilogueToElement<float>(parameters, matrix, row, column, sum);
  const bool is_row_major = parameters.d.order == Order::kRowMajor;
  std::byte* const line = parameters.d.data + matrix * parameters.d.batch_stride_bytes +
                          (is_row_major ? row : column) * parameters.d.line_stride_bytes;
  const int64_t index = is_row_major ? column : row;
  if (parameters.d.type == ElementType::kF32) {
    reinterpret_cast<uint32_t*>(line)[index] = BitsWithOneNan(x);
  } else {
    const uint32_t code = NarrowPairTo(parameters.d.type, x, 0);
    reinterpret_cast<uint16_t*>(line)[index] = static_cast<uint16_t>(code);
  }
}

template <mma::Operand kOperand>
__device__ mma::Position PositionOf(int lane, int element) {
  constexpr mma::Instruction kOf = kInstruction;
  return mma::PositionOf(kOf, kOperand, lane, element);
}

template <typename Source>
__device__ __forceinline__ void MakeExactSums(const ExactJob& job,
                                              const EpilogueParameters& parameters) {
  __shared__ double a_tile[kDepth][kStride];
  __shared__ double b_tile[kDepth][kStride];
  __shared__ float made[kTile][kTile + 1];
  __shared__ uint32_t marked[kTile][2];
  if (job.split.any != nullptr && *job.split.any == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int down = thread / 32 % kWarpsDown * kInstruction.m;
  const int across = thread / 32 / kWarpsDown * (kAcross * kInstruction.n);
  for (int64_t tile = blockIdx.x; tile < job.tiles; tile += gridDim.x) {
    const int64_t matrix = tile / job.tiles_of_matrix;
    const int64_t first_row = tile % job.tiles_of_matrix / job.tiles_of_row * kTile;
    const int64_t first_column = tile % job.tiles_of_matrix % job.tiles_of_row * kTile;
    uint32_t word = 0;
    if (thread < 2 * kTile && first_row + thread / 2 < job.a.lines) {
      const int64_t at = first_column / 32 + thread % 2;
      if (job.split.any == nullptr) {
        word = ~0U;
      } else if (at < job.split.words_of_row) {
        const int64_t row = matrix * job.a.lines + first_row + thread / 2;
        word = job.split.marks[row * job.split.words_of_row + at];
      }
    }
    if (thread < 2 * kTile) marked[thread / 2][thread % 2] = word;
    if (__syncthreads_or(word != 0 ? 1 : 0) == 0) continue;
    double sums[kAcross][4] = {};
    const Bringer of_a(job.a, matrix, first_row, job.k);
    const Bringer of_b(job.b, matrix, first_column, job.k);
    float next_a[kEach];
    float next_b[kEach];
    of_a.Load(0, next_a);
    of_b.Load(0, next_b);
    bool is_aborted = false;
    int depths = 0;
    for (int64_t first_k = 0; first_k < job.k && !is_aborted; first_k += kDepth, ++depths) {
      of_a.Stage(next_a, a_tile);
      of_b.Stage(next_b, b_tile);
      __syncthreads();
      of_a.Load(first_k + kDepth, next_a);
      of_b.Load(first_k + kDepth, next_b);
      double a[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const mma::Position at = PositionOf<mma::Operand::kA>(lane, i);
        a[i] = a_tile[at.column][down + at.row];
      }
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const mma::Position at = PositionOf<mma::Operand::kB>(lane, i);
          b[i] = b_tile[at.row][across + j * kInstruction.n + at.column];
        }
        ptx::Mma<Source>(sums[j], a, b);
      }
      const bool looks = depths % kDepthsBetweenLooks == kDepthsBetweenLooks - 1;
      is_aborted = __syncthreads_or(looks && thread == 0 && IsAborted(job.abort) ? 1 : 0) != 0;
    }
    if (is_aborted) return;
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const mma::Position at = PositionOf<mma::Operand::kD>(lane, i);
        made[down + at.row][across + j * kInstruction.n + at.column] =
            static_cast<float>(sums[j][i]);
      }
    }
    __syncthreads();
    for (int i = thread; i < kTile * kTile; i += kBlockThreads) {
      const int row = i / kTile;
      const int column = i % kTile;
      const bool is_marked = (marked[row][column / 32] >> column % 32 & 1) != 0;
      if (!is_marked || first_column + column >= job.b.lines) continue;
      StoreSum(parameters, job.sums, matrix, first_row + row, first_column + column,
               made[row][column]);
    }
    __syncthreads();
  }
}

// Chips without the instruction have no rows that need this.
template <typename Source>
__global__ void __launch_bounds__(kBlockThreads)
    ExactSumsKernel(const __grid_constant__ ExactJob job,
                    const __grid_constant__ EpilogueParameters parameters) {
  if constexpr (mma::SupportOn(kInstruction, ptx::kChip) == mma::Support::kNative) {
    MakeExactSums<Source>(job, parameters);
  }
}

ExactLines LinesOf(const MatrixLayout& layout, const std::byte* data, bool has_rows) {
  const bool is_along = has_rows == (layout.order == Order::kRowMajor);
  const int64_t stride = layout.line_stride_bytes();
  return {.data = data,
          .line_bytes = is_along ? stride : int64_t{sizeof(float)},
          .element_bytes = is_along ? int64_t{sizeof(float)} : stride,
          .matrix_bytes = layout.batch_stride_bytes,
          .lines = has_rows ? layout.rows : layout.columns};
}

}  // namespace

absl::Status LaunchExactSums(const GemmArgs& args, const SplitParameters& split,
                             const SumsInMemory& sums, CUstream_st* stream) {
  const Problem& problem = args.problem;
  ExactJob job;
  job.a = LinesOf(problem.a, args.a, true);
  job.b = LinesOf(problem.b, args.b, false);
  job.k = problem.k;
  job.tiles_of_row = (problem.n + kTile - 1) / kTile;
  job.tiles_of_matrix = (problem.m + kTile - 1) / kTile * job.tiles_of_row;
  job.tiles = job.tiles_of_matrix * problem.batch;
  job.split = split;
  job.sums = sums;
  job.abort = args.abort_word;
  ExactSumsKernel<F64><<<BlocksFor(job.tiles), kBlockThreads, 0, stream>>>(
      job, EpilogueOf(args, ElementType::kF32));
  return LaunchStatus("exact sums");
}

}  // namespace gemmd
