// SPDX-License-Identifier: Apache-2.0
//
// What CUDA's runtime hands out, owned; its errors as absl::Status.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

// OK, ResourceExhausted where memory ran out, Internal for anything else: "what: cudaErrorName:
// description".
absl::Status CudaStatus(cudaError_t error, std::string_view what);

// Whether the context is lost: every later call on it fails.
bool IsSticky(cudaError_t error);

class DeviceMemory {
 public:
  // Of the current GPU, aligned to 256 bytes. No bytes: no memory.
  // Errors: ResourceExhausted.
  static absl::StatusOr<DeviceMemory> Allocate(int64_t bytes);

  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Gives the memory to the caller, who frees it with cudaFree.
  std::byte* Release() { return std::exchange(data_, nullptr); }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Stream {
 public:
  // Does not wait for the default stream.
  static absl::StatusOr<Stream> Create();

  Stream() = default;
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  cudaStream_t get() const { return stream_; }
  absl::Status Wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  static absl::StatusOr<Event> Create();

  Event() = default;
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  ~Event();

  cudaEvent_t get() const { return event_; }
  absl::Status Record(const Stream& stream) const;
  // From `start` to this one, both of them reached.
  absl::StatusOr<int64_t> NanosecondsSince(const Event& start) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace gemmd
