// SPDX-License-Identifier: Apache-2.0
#include "server/worker/cuda/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/operands/copy_parts.h"
#include "kernels/cuda/device/operands/gather.h"
#include "kernels/cuda/device/operands/sparse24.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"

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

// A memory pool that the driver keeps for this process: unlike cudaMalloc and cudaFree, allocating
// and freeing do not wait for streams.
class MemoryPool {
 public:
  absl::Status Open(int ordinal) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = ordinal};
    RETURN_IF_ERROR(CudaStatus(cudaMemPoolCreate(&pool_, &properties), "pool of memory"));
    uint64_t kept_bytes = std::numeric_limits<uint64_t>::max();
    RETURN_IF_ERROR(
        CudaStatus(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &kept_bytes),
                   "pool of memory"));
    ASSIGN_OR_RETURN(stream_, Stream::Create());
    return absl::OkStatus();
  }

  absl::StatusOr<std::byte*> Take(int64_t bytes) {
    void* memory = nullptr;
    RETURN_IF_ERROR(CudaStatus(
        cudaMallocFromPoolAsync(&memory, static_cast<size_t>(bytes), pool_, stream_.get()),
        "memory of the GPU"));
    // The stream has no other work; after the wait, every stream may use the memory.
    if (absl::Status status = stream_.Wait(); !status.ok()) {
      cudaFreeAsync(memory, stream_.get());
      return status;
    }
    return static_cast<std::byte*>(memory);
  }

  void GiveBack(std::byte* memory) { cudaFreeAsync(memory, stream_.get()); }

 private:
  cudaMemPool_t pool_ = nullptr;  // Freed with the process.
  Stream stream_;
};

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
    RETURN_IF_ERROR(pool_.Open(ordinal));
    for (const Lane lane : kAllLanes) {
      const auto order = lane == Lane::kCheck ? Stream::Order::kFirst : Stream::Order::kLast;
      ASSIGN_OR_RETURN(streams_[static_cast<size_t>(lane)], Stream::Create(order));
    }
    return Describe(ordinal);
  }

  absl::StatusOr<std::byte*> RegisterStaging(absl::Span<std::byte> staging) override {
    RETURN_IF_ERROR(
        CudaStatus(cudaHostRegister(staging.data(), staging.size(), cudaHostRegisterMapped),
                   "registration of the staging area"));
    void* seen = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaHostGetDevicePointer(&seen, staging.data(), 0),
                               "registration of the staging area"));
    return static_cast<std::byte*>(seen);
  }

  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override { return pool_.Take(bytes); }
  void Free(std::byte* memory) override { pool_.GiveBack(memory); }

  absl::Status CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) override {
    return CudaStatus(
        cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, Of(lane).get()),
        "copy to the GPU");
  }
  absl::Status CopyOut(Lane lane, absl::Span<std::byte> to, const std::byte* from) override {
    return CudaStatus(
        cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, Of(lane).get()),
        "copy from the GPU");
  }
  absl::Status CopyLines(Lane lane, const MemoryLines& lines) override {
    const auto size = [](int64_t value) { return static_cast<size_t>(value); };
    const bool are_joined =
        lines.to_stride_bytes == lines.line_bytes && lines.from_stride_bytes == lines.line_bytes;
    if (are_joined || lines.lines == 1) {
      return CudaStatus(cudaMemcpyAsync(lines.to, lines.from, size(lines.line_bytes * lines.lines),
                                        cudaMemcpyDeviceToDevice, Of(lane).get()),
                        "copy on the GPU");
    }
    return CudaStatus(
        cudaMemcpy2DAsync(lines.to, size(lines.to_stride_bytes), lines.from,
                          size(lines.from_stride_bytes), size(lines.line_bytes), size(lines.lines),
                          cudaMemcpyDeviceToDevice, Of(lane).get()),
        "copy of lines on the GPU");
  }
  absl::Status CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                         int64_t max_bytes) override {
    return CopyPartsOnStream(parts, count, max_bytes, Of(lane).get());
  }
  absl::Status Clear(Lane lane, std::byte* memory, int64_t bytes) override {
    return CudaStatus(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), Of(lane).get()),
                      "clearing");
  }
  absl::Status Gather(Lane lane, absl::Span<const ElementGather> gathers) override {
    return GatherOnStream(gathers, Of(lane).get());
  }
  absl::Status Launch(Lane lane, const Kernel& kernel, const GemmArgs& args) override {
    return LaunchOnStream(kernel, args, Of(lane).get());
  }
  absl::Status Compress(const CompressView& view, BadGroup* bad) override {
    return CompressViewOnStream(view, bad, Of(Lane::kCompute).get());
  }
  absl::Status Mark(Lane lane, Moment moment) override {
    while (events_.size() <= moment) {
      ASSIGN_OR_RETURN(Event event, Event::Create());
      events_.push_back(std::move(event));
    }
    return events_[moment].Record(Of(lane));
  }
  absl::Status Follow(Lane lane, Moment moment) override {
    return CudaStatus(cudaStreamWaitEvent(Of(lane).get(), events_[moment].get(), 0),
                      "a stream's wait for another");
  }
  absl::StatusOr<bool> IsReached(Moment moment) override {
    const cudaError_t error = cudaEventQuery(events_[moment].get());
    if (error == cudaErrorNotReady) return false;
    RETURN_IF_ERROR(CudaStatus(error, "work of the GPU"));
    return true;
  }
  absl::Status Wait() override {
    for (const Stream& stream : streams_) RETURN_IF_ERROR(stream.Wait());
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) override {
    return events_[end].NanosecondsSince(events_[start]);
  }

  bool IsLost() override {
    cudaGetLastError();  // Clears non-sticky errors.
    return std::any_of(streams_.begin(), streams_.end(), [](const Stream& stream) {
      return IsSticky(cudaStreamQuery(stream.get()));
    });
  }

 private:
  const Stream& Of(Lane lane) const { return streams_[static_cast<size_t>(lane)]; }

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

  MemoryPool pool_;
  std::array<Stream, kAllLanes.size()> streams_;
  std::vector<Event> events_;  // By moment.
};

}  // namespace

std::unique_ptr<GpuRuntime> MakeCudaRuntime() { return std::make_unique<CudaRuntime>(); }

}  // namespace gemmd
