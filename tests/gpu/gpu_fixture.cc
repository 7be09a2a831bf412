// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_fixture.h"

#include <string>
#include <utility>

namespace gemmd {

void GpuTest::SetUp() {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess) << "no GPU";
  ASSERT_GT(count, 0) << "no GPU";
}

DeviceCopy::DeviceCopy(const std::vector<std::byte>& bytes) {
  absl::StatusOr<DeviceBuffer> memory = DeviceBuffer::Allocate(static_cast<int64_t>(bytes.size()));
  ExpectDone(memory.status());
  if (!memory.ok() || bytes.empty()) return;
  memory_ = *std::move(memory);
  ExpectDone(
      CudaStatus(cudaMemcpy(memory_.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                 "copy to the GPU"));
  // A copy from pageable memory may still be under way, and other streams do not wait for it.
  ExpectDone(CudaStatus(cudaDeviceSynchronize(), "copy to the GPU"));
}

std::vector<std::byte> DeviceCopy::Read(const Stream& stream) const {
  ExpectDone(stream.Wait());
  std::vector<std::byte> bytes(static_cast<size_t>(memory_.bytes()));
  if (bytes.empty()) return bytes;
  ExpectDone(
      CudaStatus(cudaMemcpy(bytes.data(), memory_.data(), bytes.size(), cudaMemcpyDeviceToHost),
                 "copy from the GPU"));
  return bytes;
}

Stream MakeStream() {
  absl::StatusOr<Stream> stream = Stream::Create();
  ExpectDone(stream.status());
  return stream.ok() ? *std::move(stream) : Stream();
}

void ExpectDone(const absl::Status& status) {
  EXPECT_TRUE(status.ok()) << std::string(status.message());
}

}  // namespace gemmd
