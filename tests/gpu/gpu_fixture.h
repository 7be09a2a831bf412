// SPDX-License-Identifier: Apache-2.0
//
// What tests that need a GPU share. Without one they fail, as they do on any error.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/device/runtime.h"

namespace gemmd {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override;
};

// Bytes on the current GPU.
class DeviceCopy {
 public:
  explicit DeviceCopy(const std::vector<std::byte>& bytes);
  template <typename T>
  static DeviceCopy Of(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    return DeviceCopy(std::vector<std::byte>(bytes, bytes + values.size() * sizeof(T)));
  }

  // Aligned to 256; null where there are no bytes.
  std::byte* data() const { return memory_.data(); }

  // Waits for the stream and copies the bytes back.
  std::vector<std::byte> Read(const Stream& stream) const;

 private:
  DeviceBuffer memory_;
};

// Makes a stream; fails the test where that fails.
Stream MakeStream();

// Fails the test where the status is not OK.
void ExpectDone(const absl::Status& status);

}  // namespace gemmd
