// SPDX-License-Identifier: Apache-2.0
//
// The sparse format and pruning on a GPU give the same bytes, counts and messages as on the CPU.
#include "kernels/cuda/device/operands/sparse24.h"

#include <cstring>

#include "tests/gpu/gpu_fixture.h"
#include "tests/kernels/cuda/sparse_checks.h"

namespace gemmd {
namespace {

// A word that kernels write.
class DeviceWord {
 public:
  DeviceWord() : copy_(SparseBytes(sizeof(uint64_t), std::byte{0x5a})) {}

  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(copy_.data());
  }
  uint64_t Read(const Stream& stream) const {
    const SparseBytes bytes = copy_.Read(stream);
    uint64_t word = 0;
    if (bytes.size() == sizeof(word)) std::memcpy(&word, bytes.data(), sizeof(word));
    return word;
  }

 private:
  DeviceCopy copy_;
};

using PruneFunction = absl::Status (*)(const SparseLayout&, std::byte*, int64_t*, CUstream_st*);

template <PruneFunction kPrune>
int64_t PruneOnGpu(const SparseLayout& layout, SparseBytes& dense) {
  const Stream stream = MakeStream();
  const DeviceCopy copy(dense);
  const DeviceWord cleared;
  ExpectDone(kPrune(layout, copy.data(), cleared.As<int64_t>(), stream.get()));
  dense = copy.Read(stream);
  return static_cast<int64_t>(cleared.Read(stream));
}

absl::Status CheckPrunedOnGpu(const SparseLayout& layout, const SparseBytes& dense) {
  const Stream stream = MakeStream();
  const DeviceCopy copy(dense);
  const DeviceWord bad;
  ExpectDone(CheckPrunedOnStream(layout, copy.data(), bad.As<BadGroup>(), stream.get()));
  return PrunedRefusal("a.data", layout, bad.Read(stream));
}

absl::Status CheckCompressedOnGpu(const SparseLayout& layout, const SparseBytes& compressed) {
  const Stream stream = MakeStream();
  const DeviceCopy copy(compressed);
  const DeviceWord bad;
  ExpectDone(CheckCompressedOnStream(layout, copy.data(), bad.As<BadGroup>(), stream.get()));
  return CompressedRefusal("a.data", layout, bad.Read(stream));
}

absl::Status CompressOnGpu(const SparseLayout& layout, const SparseBytes& dense,
                           SparseBytes& compressed) {
  const Stream stream = MakeStream();
  const DeviceCopy source(dense);
  const DeviceCopy target(compressed);
  const DeviceWord bad;
  ExpectDone(
      CompressOnStream(layout, source.data(), target.data(), bad.As<BadGroup>(), stream.get()));
  compressed = target.Read(stream);
  return PrunedRefusal("a.data", layout, bad.Read(stream));
}

void ExpandOnGpu(const SparseLayout& layout, const SparseBytes& compressed, SparseBytes& dense) {
  const Stream stream = MakeStream();
  const DeviceCopy source(compressed);
  const DeviceCopy target(dense);
  ExpectDone(ExpandOnStream(layout, source.data(), target.data(), stream.get()));
  dense = target.Read(stream);
}

const PruneFunctions kPruningOnGpu = {PruneOnGpu<PruneOnStream>, PruneOnGpu<PruneBothWaysOnStream>};
const SparseFunctions kOnGpu = {CheckPrunedOnGpu, CheckCompressedOnGpu, CompressOnGpu, ExpandOnGpu};

class Sparse24OnGpuTest : public GpuTest {};

TEST_F(Sparse24OnGpuTest, Pruning) {
  RandomSource random;
  CheckPruning(kPruningOnGpu, random);
}

TEST_F(Sparse24OnGpuTest, Compressing) {
  RandomSource random;
  CheckCompressing(kOnGpu, random);
}

TEST_F(Sparse24OnGpuTest, CompressingViews) {
  RandomSource random;
  CheckCompressingViews(
      [](CompressView view, const SparseBytes& dense, const SparseBytes& mask,
         SparseBytes& compressed) {
        const Stream stream = MakeStream();
        const DeviceCopy dense_copy(dense);
        const DeviceCopy mask_copy(mask.empty() ? SparseBytes(1) : mask);
        const DeviceCopy target(compressed);
        const DeviceWord bad;
        view.dense = dense_copy.data();
        view.mask = mask.empty() ? nullptr : mask_copy.data();
        view.compressed = target.data();
        ExpectDone(CompressViewOnStream(view, bad.As<BadGroup>(), stream.get()));
        compressed = target.Read(stream);
        return BadGroup{bad.Read(stream)};
      },
      random);
}

TEST_F(Sparse24OnGpuTest, Faults) {
  RandomSource random;
  CheckFaults(kOnGpu, random);
}

}  // namespace
}  // namespace gemmd
