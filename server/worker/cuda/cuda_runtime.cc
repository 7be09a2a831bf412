// SPDX-License-Identifier: Apache-2.0
#include "server/worker/cuda/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <array>
#include <optional>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/mma/find.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

absl::StatusOr<int> Attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&value, attribute, ordinal), "attribute"));
  return value;
}

absl::StatusOr<Target> TargetOf(int ordinal) {
  ASSIGN_OR_RETURN(const int major, Attribute(cudaDevAttrComputeCapabilityMajor, ordinal));
  ASSIGN_OR_RETURN(const int minor, Attribute(cudaDevAttrComputeCapabilityMinor, ordinal));
  const std::optional<mma::Chip> chip = mma::ChipFromCapability(10 * major + minor);
  if (!chip) {
    return absl::UnimplementedError(
        GotWant("compute capability", Concat(major, ".", minor), "a chip with tensor cores"));
  }
  Target target = {.kind = DeviceKind::kCuda, .chip = *chip};
  ASSIGN_OR_RETURN(target.multiprocessors, Attribute(cudaDevAttrMultiProcessorCount, ordinal));
  return target;
}

absl::StatusOr<std::string> BusOfGpu(int ordinal) {
  std::array<char, 32> bus = {};
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), ordinal), "bus"));
  return std::string(bus.data());
}

absl::StatusOr<std::string> NameOfGpu(int ordinal) {
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "properties"));
  return std::string(properties.name);
}

class CudaRuntime final : public GpuRuntime {
 public:
  absl::StatusOr<GpuDescription> Open(int ordinal) override {
    int count = 0;
    RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "count of GPUs"));
    if (ordinal < 0 || ordinal >= count) {
      return absl::NotFoundError(
          GotWant("GPU", Concat(ordinal), Concat("less than ", count, ", as many as there are")));
    }
    RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "choice of the GPU"));
    ASSIGN_OR_RETURN(stream_, Stream::Create());
    for (Event& event : events_) {
      ASSIGN_OR_RETURN(event, Event::Create());
    }
    for (Event& event : step_ends_) {
      ASSIGN_OR_RETURN(event, Event::Create());
    }
    return Describe(ordinal);
  }

  absl::Status RegisterStaging(absl::Span<std::byte> staging) override {
    return CudaStatus(cudaHostRegister(staging.data(), staging.size(), cudaHostRegisterDefault),
                      "registration of the staging area");
  }

  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Allocate(bytes));
    return memory.Release();
  }
  void Free(std::byte* memory) override { cudaFree(memory); }

  absl::Status CopyIn(std::byte* to, absl::Span<const std::byte> from) override {
    return CudaStatus(
        cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_.get()),
        "copy to the GPU");
  }
  absl::Status CopyOut(absl::Span<std::byte> to, const std::byte* from) override {
    return CudaStatus(
        cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_.get()),
        "copy from the GPU");
  }
  absl::Status Clear(std::byte* memory, int64_t bytes) override {
    return CudaStatus(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_.get()),
                      "clearing");
  }
  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override {
    return LaunchOnStream(kernel, args, stream_.get());
  }
  absl::Status Mark(Moment moment) override { return EventOf(moment).Record(stream_); }
  absl::Status Wait() override { return stream_.Wait(); }
  absl::Status EndStep() override {
    RETURN_IF_ERROR(step_ends_[steps_++ % step_ends_.size()].Record(stream_));
    // The other event is that of the step before; one that was never recorded counts as reached.
    return CudaStatus(cudaEventSynchronize(step_ends_[steps_ % step_ends_.size()].get()), "step");
  }
  absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) override {
    return EventOf(end).NanosecondsSince(EventOf(start));
  }

  bool IsLost() override {
    cudaGetLastError();  // Forget what is not sticky.
    return IsSticky(cudaStreamSynchronize(stream_.get()));
  }

 private:
  Event& EventOf(Moment moment) { return events_[static_cast<size_t>(moment)]; }

  static absl::StatusOr<GpuDescription> Describe(int ordinal) {
    GpuDescription gpu;
    ASSIGN_OR_RETURN(gpu.name, NameOfGpu(ordinal));
    ASSIGN_OR_RETURN(gpu.target, TargetOf(ordinal));
    size_t free_bytes = 0;
    size_t all_bytes = 0;
    RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &all_bytes), "memory of the GPU"));
    gpu.free_memory_bytes = static_cast<int64_t>(free_bytes);
    gpu.memory_bytes = static_cast<int64_t>(all_bytes);
    ASSIGN_OR_RETURN(gpu.clock_khz, Attribute(cudaDevAttrClockRate, ordinal));
    ASSIGN_OR_RETURN(gpu.memory_clock_khz, Attribute(cudaDevAttrMemoryClockRate, ordinal));
    RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&gpu.driver_version), "driver's version"));
    RETURN_IF_ERROR(CudaStatus(cudaRuntimeGetVersion(&gpu.runtime_version), "runtime's version"));
    ASSIGN_OR_RETURN(gpu.pci_bus_id, BusOfGpu(ordinal));
    return gpu;
  }

  Stream stream_;
  std::array<Event, 4> events_;
  std::array<Event, 2> step_ends_;
  size_t steps_ = 0;
};

}  // namespace

std::unique_ptr<GpuRuntime> MakeCudaRuntime() { return std::make_unique<CudaRuntime>(); }

}  // namespace gemmd
