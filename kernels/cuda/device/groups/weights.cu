// SPDX-License-Identifier: Apache-2.0
//
// Narrow rows of f16 and bf16 whose A are quantized weights.
#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/device/mainloop/weights_product.cuh"
#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/groups/wgmma.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

inline constexpr auto kWeightRows = CollectRows([](const auto& add) {
  for (const mma::Instruction& instruction : mma::kInstructions) {
    ForEachRowIn<CudaGroup::kWgmmaF16>(instruction, [&add](const CudaRow& row) {
      if (IsNarrow(row) && row.instruction.d == ElementType::kF32) add(row);
    });
  }
});

struct Entry {
  CudaRow row;
  WeightsKernel kernel;
};

template <size_t kAt>
Entry EntryOf() {
  Entry entry{kWeightRows[kAt], {}};
  if constexpr (RunsInThisBuild(kWeightRows[kAt])) {
    using Row = typename row_type::RowAt<kWeightRows, kAt>::Type;
    using Block = WeightsBlock<Row>;
    entry.kernel = {.function = reinterpret_cast<const void*>(&MultiplyWeights<Row>),
                    .threads = Block::kThreads,
                    .shared_bytes = Block::kSharedBytes,
                    .blocks_of_multiprocessor = Block::kBlocks};
  }
  return entry;
}

template <size_t... kAt>
std::array<Entry, sizeof...(kAt)> MakeEntries(std::index_sequence<kAt...>) {
  return {EntryOf<kAt>()...};
}

// Kernels that use more than 48 KiB of shared memory must opt in, on each GPU once: asking CUDA
// takes as long as a launch.
absl::Status Admit(const WeightsKernel& kernel) {
  static auto* const admitted = new std::set<std::pair<int, const void*>>();  // Never destroyed.
  static std::mutex mutex;
  int gpu = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&gpu), "GPU"));
  const std::lock_guard lock(mutex);
  if (admitted->contains({gpu, kernel.function})) return absl::OkStatus();
  RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kernel.shared_bytes),
                 "weights"));
  admitted->emplace(gpu, kernel.function);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightsKernel> WeightsKernelOf(const CudaRow& row) {
  static const auto entries = MakeEntries(std::make_index_sequence<kWeightRows.size()>());
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&row](const Entry& entry) { return entry.row == row; });
  if (found == entries.end() || found->kernel.function == nullptr) {
    return absl::FailedPreconditionError(
        "kernel: this build has no code of this row for weights of s4");
  }
  RETURN_IF_ERROR(Admit(found->kernel));
  return found->kernel;
}

}  // namespace gemmd
