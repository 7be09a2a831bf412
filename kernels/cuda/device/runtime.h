// SPDX-License-Identifier: Apache-2.0
//
// Owners of CUDA runtime resources, and CUDA errors as absl::Status.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

// Converts an error to OK, ResourceExhausted (memory ran out) or Internal (anything else), with the
// message "what: cudaErrorName: description".
absl::Status CudaStatus(cudaError_t error, std::string_view what);

// Whether this error destroys the context, so that every later call on it fails.
bool IsSticky(cudaError_t error);

class DeviceBuffer {
 public:
  // Allocates memory of the current GPU, aligned to 256 bytes; nothing for 0 bytes. Errors:
  // ResourceExhausted.
  static absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Passes the memory to the caller, who frees it with cudaFree.
  std::byte* Release() { return std::exchange(data_, nullptr); }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Stream {
 public:
  // Whether its kernels run before or after those of other streams that are ready.
  enum class Order : uint8_t { kFirst, kLast };

  // Creates a stream that does not wait for the default stream.
  static absl::StatusOr<Stream> Create(Order order = Order::kLast);

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
  // The time from `start` to this event. Both must have been reached.
  absl::StatusOr<int64_t> NanosecondsSince(const Event& start) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace gemmd
