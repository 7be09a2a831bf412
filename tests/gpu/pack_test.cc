// SPDX-License-Identifier: Apache-2.0
//
// Packing of operands and metadata on a GPU gives the same bytes as on the CPU.
#include "kernels/cuda/device/operands/pack.h"

#include "kernels/cuda/device/operands/metadata.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/kernels/cuda/pack_checks.h"

namespace gemmd {
namespace {

// Calls pack(source, workspace, stream) with both on the GPU; returns the workspace.
template <typename Pack>
std::vector<std::byte> OnGpu(const PackCase& test, const Pack& pack) {
  const Stream stream = MakeStream();
  const DeviceCopy source(test.source);
  const DeviceCopy workspace(
      std::vector<std::byte>(static_cast<size_t>(test.plan.workspace_bytes), std::byte{0xff}));
  ExpectDone(pack(source.data(), workspace.data(), stream.get()));
  return workspace.Read(stream);
}

std::vector<std::byte> PackOnGpu(const PackCase& test) {
  return OnGpu(test, [&](const std::byte* source, std::byte* workspace, CUstream_st* stream) {
    const PackedOperand one = {test.operand, test.operand_plan(), source, workspace};
    return PackOperands(test.row, test.problem, absl::MakeConstSpan(&one, 1), stream);
  });
}

std::vector<std::byte> RepackOnGpu(const PackCase& test) {
  return OnGpu(test, [&](const std::byte* a, std::byte* workspace, CUstream_st* stream) {
    return RepackMetadata(test.row, test.problem, test.plan, a, workspace, stream);
  });
}

class PackOnGpuTest : public GpuTest {};

TEST_F(PackOnGpuTest, EveryTypeAndDirection) {
  RandomSource random;
  CheckPacking(PackOnGpu, random);
}

TEST_F(PackOnGpuTest, SparseValues) {
  RandomSource random;
  CheckPackingOfSparseValues(PackOnGpu, random);
}

TEST_F(PackOnGpuTest, Metadata) {
  RandomSource random;
  CheckMetadata(RepackOnGpu, random);
}

}  // namespace
}  // namespace gemmd
