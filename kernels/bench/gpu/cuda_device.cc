// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/cuda_device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <utility>
#include <vector>

#include "kernels/bench/gpu/cuda_graph.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"

namespace gemmd::bench {
namespace {

// Times the work that Put enqueues on the stream.
class CudaLoop : public Loop {
 public:
  CudaLoop(CudaDevice& device, const Stream& stream, int calls)
      : device_(device), stream_(stream), calls_(calls) {}

  absl::Status Prepare() {
    ASSIGN_OR_RETURN(begin_, Event::Create());
    ASSIGN_OR_RETURN(end_, Event::Create());
    return absl::OkStatus();
  }

  absl::StatusOr<double> Run(int times) override {
    RETURN_IF_ERROR(begin_.Record(stream_));
    for (int i = 0; i < times; ++i) RETURN_IF_ERROR(Put());
    RETURN_IF_ERROR(end_.Record(stream_));
    sm_clock_mhz_ = device_.ReadClockMhz();  // The GPU is busy now.
    RETURN_IF_ERROR(stream_.Wait());
    ASSIGN_OR_RETURN(const int64_t nanoseconds, end_.NanosecondsSince(begin_));
    return static_cast<double>(nanoseconds) * 1e-9;
  }

  int calls() const override { return calls_; }
  int sm_clock_mhz() const override { return sm_clock_mhz_; }

 protected:
  virtual absl::Status Put() = 0;
  const Stream& stream() const { return stream_; }

 private:
  CudaDevice& device_;
  const Stream& stream_;
  const int calls_;
  Event begin_;
  Event end_;
  int sm_clock_mhz_ = 0;
};

class GraphLoop : public CudaLoop {
 public:
  GraphLoop(CudaDevice& device, const Stream& stream, int calls, CudaGraphInstance instance)
      : CudaLoop(device, stream, calls), instance_(std::move(instance)) {}

 protected:
  absl::Status Put() override { return instance_.Launch(stream()); }

 private:
  CudaGraphInstance instance_;
};

// Launches calls one by one.
class CallLoop : public CudaLoop {
 public:
  CallLoop(CudaDevice& device, const Stream& stream, int calls, Call call)
      : CudaLoop(device, stream, calls), call_(std::move(call)) {}

 protected:
  absl::Status Put() override {
    for (int i = 0; i < calls(); ++i) RETURN_IF_ERROR(call_(i));
    return absl::OkStatus();
  }

 private:
  Call call_;
};

template <typename SomeLoop>
absl::StatusOr<std::unique_ptr<Loop>> Prepared(std::unique_ptr<SomeLoop> loop) {
  RETURN_IF_ERROR(loop->Prepare());
  return loop;
}

absl::StatusOr<int> Attribute(cudaDeviceAttr attribute, int index) {
  int value = 0;
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&value, attribute, index), "attribute of the GPU"));
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return absl::FailedPreconditionError(Concat("--device: no GPU: ", cudaGetErrorString(error)));
  }
  if (index >= count) {
    return absl::FailedPreconditionError(GotWant(
        "--device", Concat("cuda:", index), Concat("a number below ", count, ", the GPUs here")));
  }
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(index), "GPU"));
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice());
  RETURN_IF_ERROR(device->ReadFacts(index));
  ASSIGN_OR_RETURN(device->stream_, Stream::Create());
  return device;
}

absl::Status CudaDevice::ReadFacts(int index) {
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, index), "properties"));
  const std::string chip = Concat("sm_", properties.major, properties.minor);
  const std::optional<mma::Chip> known = mma::ChipFromName(chip);
  if (!known) {
    return absl::FailedPreconditionError(GotWant("--device", chip, "a chip of the catalogue"));
  }
  facts_.name = properties.name;
  facts_.target = {
      .kind = DeviceKind::kCuda, .chip = *known, .multiprocessors = properties.multiProcessorCount};
  facts_.l2_bytes = properties.l2CacheSize;
  ASSIGN_OR_RETURN(const int kilohertz, Attribute(cudaDevAttrClockRate, index));
  facts_.max_sm_clock_mhz = kilohertz / 1000;
  int version = 0;
  RETURN_IF_ERROR(CudaStatus(cudaRuntimeGetVersion(&version), "version of CUDA"));
  facts_.cuda = Concat(version / 1000, ".", version % 1000 / 10);
  std::array<char, 32> bus = {};
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index),
                             "bus of the GPU"));
  absl::StatusOr<Nvml> nvml = Nvml::Open(bus.data());
  if (!nvml.ok()) return absl::OkStatus();  // Clocks and driver version remain unknown.
  facts_.driver = nvml->driver_version();
  nvml_.emplace(*std::move(nvml));
  return absl::OkStatus();
}

absl::StatusOr<DeviceBytes> CudaDevice::Allocate(int64_t bytes) {
  ASSIGN_OR_RETURN(DeviceBuffer memory, DeviceBuffer::Allocate(bytes));
  std::byte* const data = memory.data();
  auto owner = std::make_shared<DeviceBuffer>(std::move(memory));
  return DeviceBytes(data, [owner](std::byte*) mutable { owner.reset(); });
}

absl::Status CudaDevice::Write(std::byte* to, const std::byte* from, int64_t bytes) {
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.get()),
      "copy to the GPU"));
  return Wait();
}

absl::Status CudaDevice::Read(std::byte* to, const std::byte* from, int64_t bytes) {
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_.get()),
      "copy from the GPU"));
  return Wait();
}

absl::Status CudaDevice::Fill(std::byte* to, uint8_t value, int64_t bytes) {
  return CudaStatus(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), stream_.get()),
                    "filling memory of the GPU");
}

absl::Status CudaDevice::Launch(const Kernel& kernel, const GemmArgs& args) {
  return LaunchOnStream(kernel, args, stream_.get());
}

std::optional<double> CudaDevice::energy_joules() const {
  if (!nvml_) return std::nullopt;
  return nvml_->Read().energy_joules;
}

int CudaDevice::ReadClockMhz() const { return nvml_ ? nvml_->sm_clock_mhz() : 0; }

absl::StatusOr<std::unique_ptr<Loop>> CudaDevice::MakeLoop(int calls, const Call& call) {
  const absl::StatusOr<CudaGraph> graph = CudaGraph::Capture(stream_, [&]() -> absl::Status {
    for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(call(i));
    return absl::OkStatus();
  });
  if (absl::IsUnimplemented(graph.status())) {
    return Prepared(std::make_unique<CallLoop>(*this, stream_, calls, call));
  }
  RETURN_IF_ERROR(graph.status());
  ASSIGN_OR_RETURN(CudaGraphInstance instance, CudaGraphInstance::Create(*graph));
  return Prepared(std::make_unique<GraphLoop>(*this, stream_, calls, std::move(instance)));
}

absl::StatusOr<std::unique_ptr<Loop>> CudaDevice::MakeLastKernelLoop(int calls, const Call& call) {
  ASSIGN_OR_RETURN(CudaGraph kernels, CudaGraph::Create());
  cudaGraphNode_t last = nullptr;
  for (int i = 0; i < calls; ++i) {
    const absl::StatusOr<CudaGraph> graph = CudaGraph::Capture(stream_, [&] { return call(i); });
    if (absl::IsUnimplemented(graph.status())) return nullptr;
    RETURN_IF_ERROR(graph.status());
    ASSIGN_OR_RETURN(const std::vector<cudaGraphNode_t> nodes, graph->Nodes());
    ASSIGN_OR_RETURN(cudaGraphNode_t kernel, LastKernelOf(*graph));
    if (nodes.size() < 2 || kernel == nullptr) return nullptr;
    RETURN_IF_ERROR(kernels.AppendKernel(kernel, last));
  }
  ASSIGN_OR_RETURN(CudaGraphInstance instance, CudaGraphInstance::Create(kernels));
  return Prepared(std::make_unique<GraphLoop>(*this, stream_, calls, std::move(instance)));
}

}  // namespace gemmd::bench
