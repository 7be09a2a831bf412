// SPDX-License-Identifier: Apache-2.0
//
// The code of the kernels: for each row of kCudaRows its function on the GPU. Each source file has
// the rows of one group, so that they build side by side.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "kernels/cuda/row_table.h"

namespace gemmd {

// Null where this build has no code.
using CudaFunctions = std::array<const void*, kCudaRows.size()>;

// Adds the rows that belong to a group; Function<i>() gives the code of row i.
template <bool (*kBelongs)(const CudaRow&), template <size_t> typename Function, size_t... kAt>
void AddFunctions(CudaFunctions& functions, std::index_sequence<kAt...>) {
  const auto add = [&]<size_t kIndex>() {
    if constexpr (kBelongs(kCudaRows[kIndex])) functions[kIndex] = Function<kIndex>::Get();
  };
  (add.template operator()<kAt>(), ...);
}

template <bool (*kBelongs)(const CudaRow&), template <size_t> typename Function>
void AddFunctions(CudaFunctions& functions) {
  AddFunctions<kBelongs, Function>(functions, std::make_index_sequence<kCudaRows.size()>());
}

// One for each source file.
void AddMmaBits(CudaFunctions& functions);
void AddMmaF16(CudaFunctions& functions);
void AddMmaF64(CudaFunctions& functions);
void AddMmaFp8(CudaFunctions& functions);
void AddMmaInt4(CudaFunctions& functions);
void AddMmaInt8(CudaFunctions& functions);
void AddMmaQuads(CudaFunctions& functions);
void AddMmaTf32(CudaFunctions& functions);
void AddSparseFloats(CudaFunctions& functions);
void AddSparseInt4(CudaFunctions& functions);
void AddSparseInt8(CudaFunctions& functions);
void AddWmmaF16(CudaFunctions& functions);
void AddWmmaOthers(CudaFunctions& functions);
// These only where the build is for Blackwell.
void AddMmaNarrow(CudaFunctions& functions);
void AddMmaScaled(CudaFunctions& functions);
void AddSparseNarrow(CudaFunctions& functions);
void AddSparseScaled(CudaFunctions& functions);

}  // namespace gemmd
