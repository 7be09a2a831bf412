// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/epilogue/epilogue.cuh"
#include "kernels/cuda/device/runtime.h"
#include "tests/gpu/epilogue_kernels.h"

namespace gemmd {
namespace {

constexpr int kTileRows = 32;
constexpr int kTileColumns = 64;
constexpr int kStride = kTileColumns + 1;
constexpr int kThreads = 96;

template <typename Accumulator>
__device__ Accumulator AccumulatorAt(const EpilogueParameters& parameters,
                                     const Accumulator* accumulators, int64_t row, int64_t column) {
  if (row >= parameters.m || column >= parameters.n) return 0;
  return accumulators[(blockIdx.z * parameters.m + row) * parameters.n + column];
}

template <typename Accumulator>
__global__ void TileEpilogueKernel(const __grid_constant__ EpilogueParameters parameters,
                                   const Accumulator* accumulators) {
  __shared__ Accumulator tile[kTileRows * kStride];
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  const int64_t first_column = int64_t{blockIdx.x} * kTileColumns;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kTileRows * kTileColumns; i += kThreads) {
    const int row = i / kTileColumns;
    const int column = i % kTileColumns;
    tile[row * kStride + column] =
        AccumulatorAt(parameters, accumulators, first_row + row, first_column + column);
  }
  __syncthreads();
  ApplyEpilogueToTile(parameters, blockIdx.z, first_row, first_column, tile, kTileRows,
                      kTileColumns, kStride, thread, kThreads);
}

template <typename Accumulator>
__global__ void DirectEpilogueKernel(const __grid_constant__ EpilogueParameters parameters,
                                     const Accumulator* accumulators) {
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  const int64_t first_column = int64_t{blockIdx.x} * kTileColumns;
  constexpr int kPairs = kTileColumns / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kPairs; i += kThreads) {
    const int64_t row = first_row + i / kPairs;
    const int64_t column = first_column + i % kPairs * 2;
    StoreDirectly(parameters, blockIdx.z, row, column,
                  AccumulatorAt(parameters, accumulators, row, column),
                  AccumulatorAt(parameters, accumulators, row, column + 1));
  }
}

dim3 GridFor(const EpilogueParameters& parameters, int64_t batch) {
  return dim3(static_cast<unsigned>((parameters.n + kTileColumns - 1) / kTileColumns),
              static_cast<unsigned>((parameters.m + kTileRows - 1) / kTileRows),
              static_cast<unsigned>(batch));
}

// Calls visit with a pointer of the accumulators' type.
template <typename Visit>
void WithAccumulators(ElementType type, const std::byte* accumulators, const Visit& visit) {
  switch (type) {
    case ElementType::kF32: return visit(reinterpret_cast<const float*>(accumulators));
    case ElementType::kF64: return visit(reinterpret_cast<const double*>(accumulators));
    default: return visit(reinterpret_cast<const int32_t*>(accumulators));
  }
}

}  // namespace

absl::Status LaunchTileEpilogue(const EpilogueParameters& parameters, ElementType type,
                                const std::byte* accumulators, int64_t batch, CUstream_st* stream) {
  WithAccumulators(type, accumulators, [&](const auto* data) {
    TileEpilogueKernel<<<GridFor(parameters, batch), kThreads, 0, stream>>>(parameters, data);
  });
  return CudaStatus(cudaGetLastError(), "epilogue of tiles");
}

absl::Status LaunchDirectEpilogue(const EpilogueParameters& parameters, ElementType type,
                                  const std::byte* accumulators, int64_t batch,
                                  CUstream_st* stream) {
  WithAccumulators(type, accumulators, [&](const auto* data) {
    DirectEpilogueKernel<<<GridFor(parameters, batch), kThreads, 0, stream>>>(parameters, data);
  });
  return CudaStatus(cudaGetLastError(), "direct epilogue");
}

}  // namespace gemmd
