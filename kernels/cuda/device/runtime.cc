// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/runtime.h"

#include <cmath>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {

absl::Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      Concat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed: return true;
    default: return false;
  }
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(int64_t bytes) {
  DeviceBuffer memory;
  if (bytes == 0) return memory;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error != cudaSuccess) {
    cudaGetLastError();  // Out of memory is not sticky: clears the error.
    return CudaStatus(error, Concat("memory of the GPU, ", bytes, " bytes"));
  }
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

absl::StatusOr<Stream> Stream::Create(Order order) {
  int last = 0;
  int first = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&last, &first), "stream"));
  Stream stream;
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithPriority(&stream.stream_, cudaStreamNonBlocking,
                                                          order == Order::kFirst ? first : last),
                             "stream"));
  return stream;
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Stream::Wait() const { return CudaStatus(cudaStreamSynchronize(stream_), "stream"); }

absl::StatusOr<Event> Event::Create() {
  Event event;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event.event_), "event"));
  return event;
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

absl::Status Event::Record(const Stream& stream) const {
  return CudaStatus(cudaEventRecord(event_, stream.get()), "event");
}

absl::StatusOr<int64_t> Event::NanosecondsSince(const Event& start) const {
  float milliseconds = 0;
  RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&milliseconds, start.event_, event_), "event"));
  return std::llround(double{milliseconds} * 1e6);
}

}  // namespace gemmd
