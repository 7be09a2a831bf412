// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/cuda_runner.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"

namespace gemmd {
namespace {

constexpr int64_t kAlignment = 256;
// Long enough for tools that make kernels a hundred times slower.
constexpr std::chrono::seconds kLongest(60);

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Memory of the host that a GPU accesses without another copy.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() { cudaFreeHost(data_); }

  absl::Status Reserve(int64_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    cudaFreeHost(data_);
    data_ = nullptr;
    bytes_ = 0;
    bytes *= 2;  // So that the next one does not allocate again.
    void* data = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&data, static_cast<size_t>(bytes)), "host memory"));
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
    return absl::OkStatus();
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The status, or Aborted where nothing can run any more since the context is lost.
absl::Status WithoutContext(absl::Status status) {
  if (status.ok() || absl::IsAborted(status)) return status;
  const cudaError_t error = cudaGetLastError();
  if (!IsSticky(error)) return status;
  return absl::AbortedError(Concat("the GPU's context is lost: ", std::string(status.message())));
}

absl::Span<const float> SpanOf(const std::vector<float>& scale, const std::byte* data) {
  return {reinterpret_cast<const float*>(data), scale.size()};
}

// The contents of HostArgs, at other addresses.
struct Addresses {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* c = nullptr;
  const std::byte* bias = nullptr;
  const std::byte* a_scale = nullptr;
  const std::byte* b_scale = nullptr;
  std::byte* d = nullptr;
  std::byte* workspace = nullptr;
  OperandForm a_form = {};
  OperandForm b_form = {};
  const std::byte* a_factors = nullptr;
  const std::byte* b_factors = nullptr;
};

GemmArgs ArgsAt(const GemmArgs& host, const Product& product, const Addresses& at,
                int64_t workspace_bytes) {
  return {.problem = host.problem,
          .target = host.target,
          .a = host.a == nullptr ? nullptr : at.a,
          .b = host.b == nullptr ? nullptr : at.b,
          .c = host.c == nullptr ? nullptr : at.c,
          .bias = host.bias == nullptr ? nullptr : at.bias,
          .a_scale = SpanOf(product.a_scale, at.a_scale),
          .b_scale = SpanOf(product.b_scale, at.b_scale),
          .d = host.d == nullptr ? nullptr : at.d,
          .workspace = {at.workspace, static_cast<size_t>(workspace_bytes)},
          .a_form = at.a_form,
          .b_form = at.b_form,
          .a_factors = host.a_factors == nullptr ? nullptr : at.a_factors,
          .b_factors = host.b_factors == nullptr ? nullptr : at.b_factors};
}

class CudaRunner : public KernelRunner {
 public:
  CudaRunner(const Target& target, Stream stream) : target_(target), stream_(std::move(stream)) {}

  bool HasCode(const Kernel& kernel) const override { return gemmd::HasCode(kernel); }

 protected:
  // Errors: Aborted where a kernel does not end.
  absl::Status Wait() const {
    const auto start = std::chrono::steady_clock::now();
    while (true) {
      const cudaError_t error = cudaStreamQuery(stream_.get());
      if (error != cudaErrorNotReady) return CudaStatus(error, "stream");
      if (std::chrono::steady_clock::now() - start > kLongest) {
        return absl::AbortedError(Concat("stream: not done in ", kLongest.count(), " s"));
      }
      std::this_thread::yield();
    }
  }

  absl::Status Launch(const Kernel& kernel, const Product& product, std::vector<std::byte>& output,
                      const Addresses& addresses, int64_t workspace_bytes) {
    std::vector<std::byte> no_workspace;
    const GemmArgs host = HostArgs(product, target_, output, no_workspace);
    return LaunchOnStream(kernel, ArgsAt(host, product, addresses, workspace_bytes), stream_.get());
  }

  const Target target_;
  const Stream stream_;
};

// All products in one buffer: inputs, then outputs with their guards, then one workspace and the
// forms of one product, then a copy of inputs and outputs. Every product runs twice. Every other
// product runs first on the copy, with another workspace, since a launch must not use addresses of
// an earlier one. For the rest, the first launch makes what the kernel derives from A and from B
// and the second one finds it, mostly without using what it was derived from.
class TogetherRunner : public CudaRunner {
 public:
  using CudaRunner::CudaRunner;

  absl::Status Run(const Kernel& kernel, absl::Span<const Product> products,
                   absl::Span<std::vector<std::byte>> outputs) override {
    return WithoutContext(RunAll(kernel, products, outputs));
  }

 private:
  absl::Status RunAll(const Kernel& kernel, absl::Span<const Product> products,
                      absl::Span<std::vector<std::byte>> outputs) {
    RETURN_IF_ERROR(Upload(kernel, products, outputs));
    for (size_t i = 0; i < products.size(); ++i) {
      RETURN_IF_ERROR(i % 2 == 0 ? RunInTwoPlaces(kernel, products[i], outputs[i], i)
                                 : RunWithForms(kernel, products[i], outputs[i], i));
    }
    const int64_t bytes = end_ - outputs_start_;
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(host_.data() + outputs_start_, device_.data() + outputs_start_,
                        static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_.get()),
        "copy out"));
    RETURN_IF_ERROR(Wait());
    for (size_t i = 0; i < products.size(); ++i) {
      std::memcpy(outputs[i].data(), host_.data() + places_[i].output, outputs[i].size());
    }
    return absl::OkStatus();
  }

  absl::Status RunInTwoPlaces(const Kernel& kernel, const Product& product,
                              std::vector<std::byte>& output, size_t index) {
    const Addresses at = AddressesOf(index);
    Addresses copy = AddressesOf(index, end_ + 2 * workspace_bytes_);
    copy.workspace = at.workspace + workspace_bytes_;
    RETURN_IF_ERROR(Launch(kernel, product, output, copy, workspace_bytes_));
    RETURN_IF_ERROR(Launch(kernel, product, output, at, workspace_bytes_));
    return Poison(end_, 2 * static_cast<size_t>(workspace_bytes_));
  }

  absl::Status RunWithForms(const Kernel& kernel, const Product& product,
                            std::vector<std::byte>& output, size_t index) {
    const Problem& problem = product.problem;
    ASSIGN_OR_RETURN(const DerivedOperand of_a, kernel.derived(problem, mma::Operand::kA));
    ASSIGN_OR_RETURN(const DerivedOperand of_b, kernel.derived(problem, mma::Operand::kB));
    ASSIGN_OR_RETURN(const int64_t all_bytes, kernel.workspace_bytes(problem));
    const int64_t workspace_bytes = all_bytes - of_a.bytes - of_b.bytes;
    Addresses at = AddressesOf(index);
    std::byte* const forms = at.workspace + workspace_bytes_;
    if (of_a.bytes > 0) at.a_form.bytes = forms;
    if (of_b.bytes > 0) at.b_form.bytes = forms + of_a.bytes;
    RETURN_IF_ERROR(Launch(kernel, product, output, at, workspace_bytes));
    // The values of a sparse A may be read where they are, and so may f32 for exact sums.
    const bool has_a = of_a.bytes > 0 && !problem.a.is_sparse() && !kernel.recipe.splits_f32;
    const bool has_b = of_b.bytes > 0 && !kernel.recipe.splits_f32;
    const Places& places = places_[index];
    if (has_a) RETURN_IF_ERROR(Poison(places.a, product.a.size()));
    if (has_b) RETURN_IF_ERROR(Poison(places.b, product.b.size()));
    RETURN_IF_ERROR(Poison(end_, static_cast<size_t>(workspace_bytes_)));
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(device_.data() + places.output, host_.data() + places.output,
                                   output.size(), cudaMemcpyHostToDevice, stream_.get()),
                   "copy in"));
    at.a_form.is_made = of_a.bytes > 0;
    at.b_form.is_made = of_b.bytes > 0;
    return Launch(kernel, product, output, at, workspace_bytes);
  }

  absl::Status Poison(int64_t offset, size_t bytes) {
    constexpr int kPoison = 0xff;
    return CudaStatus(cudaMemsetAsync(device_.data() + offset, kPoison, bytes, stream_.get()),
                      "poison");
  }

  // Offsets in the buffer.
  struct Places {
    int64_t a, b, c, bias, a_scale, b_scale, a_factors, b_factors, output;
  };

  template <typename T>
  int64_t Take(const std::vector<T>& bytes) {
    const int64_t offset = end_;
    end_ = RoundUp(end_ + static_cast<int64_t>(bytes.size() * sizeof(T)));
    return offset;
  }

  template <typename T>
  void Copy(const std::vector<T>& from, int64_t offset) {
    if (!from.empty()) {
      std::memcpy(host_.data() + offset, from.data(), from.size() * sizeof(T));
    }
  }

  absl::Status Upload(const Kernel& kernel, absl::Span<const Product> products,
                      absl::Span<std::vector<std::byte>> outputs) {
    places_.clear();
    end_ = 0;
    workspace_bytes_ = 0;
    for (const Product& product : products) {
      places_.push_back({Take(product.a), Take(product.b), Take(product.c), Take(product.bias),
                         Take(product.a_scale), Take(product.b_scale), Take(product.a_factors),
                         Take(product.b_factors), 0});
      ASSIGN_OR_RETURN(const int64_t bytes, kernel.workspace_bytes(product.problem));
      workspace_bytes_ = std::max(workspace_bytes_, bytes);
    }
    outputs_start_ = end_;
    for (size_t i = 0; i < products.size(); ++i) places_[i].output = Take(outputs[i]);
    RETURN_IF_ERROR(host_.Reserve(end_));
    // Forms take only their own part of a workspace.
    workspace_bytes_ = RoundUp(workspace_bytes_);
    const int64_t bytes = 2 * (end_ + workspace_bytes_);
    if (device_.bytes() < bytes) {
      ASSIGN_OR_RETURN(device_, DeviceBuffer::Allocate(2 * bytes));
    }
    for (size_t i = 0; i < products.size(); ++i) {
      const Product& product = products[i];
      const Places& places = places_[i];
      Copy(product.a, places.a);
      Copy(product.b, places.b);
      Copy(product.c, places.c);
      Copy(product.bias, places.bias);
      Copy(product.a_scale, places.a_scale);
      Copy(product.b_scale, places.b_scale);
      Copy(product.a_factors, places.a_factors);
      Copy(product.b_factors, places.b_factors);
      Copy(outputs[i], places.output);
    }
    RETURN_IF_ERROR(Poison(end_, 2 * static_cast<size_t>(workspace_bytes_)));
    for (const int64_t start : {int64_t{0}, end_ + 2 * workspace_bytes_}) {
      RETURN_IF_ERROR(CudaStatus(
          cudaMemcpyAsync(device_.data() + start, host_.data(), static_cast<size_t>(end_),
                          cudaMemcpyHostToDevice, stream_.get()),
          "copy in"));
    }
    return absl::OkStatus();
  }

  // Inputs and outputs start so many bytes after the buffer's start.
  Addresses AddressesOf(size_t index, int64_t offset = 0) const {
    const Places& places = places_[index];
    std::byte* const start = device_.data() + offset;
    return {.a = start + places.a,
            .b = start + places.b,
            .c = start + places.c,
            .bias = start + places.bias,
            .a_scale = start + places.a_scale,
            .b_scale = start + places.b_scale,
            .d = start + places.output + kGuardBytes,
            .workspace = start + end_,
            .a_factors = start + places.a_factors,
            .b_factors = start + places.b_factors};
  }

  PinnedMemory host_;
  DeviceBuffer device_;
  std::vector<Places> places_;
  int64_t end_ = 0;
  int64_t outputs_start_ = 0;
  int64_t workspace_bytes_ = 0;
};

// Copies no guards to the GPU, since the tool watches accesses. The workspace is not initialised.
// Each product also runs once with what the kernel derives from A and B in memory of its own.
class ApartRunner : public CudaRunner {
 public:
  using CudaRunner::CudaRunner;

  absl::Status Run(const Kernel& kernel, absl::Span<const Product> products,
                   absl::Span<std::vector<std::byte>> outputs) override {
    for (size_t i = 0; i < products.size(); ++i) {
      RETURN_IF_ERROR(WithoutContext(RunOne(kernel, products[i], outputs[i])));
    }
    return absl::OkStatus();
  }

 private:
  template <typename T>
  absl::StatusOr<DeviceBuffer> Upload(const T* data, size_t count) {
    ASSIGN_OR_RETURN(DeviceBuffer memory,
                     DeviceBuffer::Allocate(static_cast<int64_t>(count * sizeof(T))));
    if (count > 0) {
      RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(memory.data(), data, count * sizeof(T),
                                                 cudaMemcpyHostToDevice, stream_.get()),
                                 "copy in"));
    }
    return memory;
  }

  absl::Status RunOne(const Kernel& kernel, const Product& product,
                      std::vector<std::byte>& output) {
    const size_t d_bytes = output.size() - 2 * kGuardBytes;
    ASSIGN_OR_RETURN(const DeviceBuffer a, Upload(product.a.data(), product.a.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer b, Upload(product.b.data(), product.b.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer c, Upload(product.c.data(), product.c.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer bias, Upload(product.bias.data(), product.bias.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer a_scale,
                     Upload(product.a_scale.data(), product.a_scale.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer b_scale,
                     Upload(product.b_scale.data(), product.b_scale.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer a_factors,
                     Upload(product.a_factors.data(), product.a_factors.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer b_factors,
                     Upload(product.b_factors.data(), product.b_factors.size()));
    ASSIGN_OR_RETURN(const DeviceBuffer d, Upload(output.data() + kGuardBytes, d_bytes));
    ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(product.problem));
    ASSIGN_OR_RETURN(const DeviceBuffer workspace, DeviceBuffer::Allocate(workspace_bytes));
    Addresses addresses = {.a = a.data(),
                           .b = b.data(),
                           .c = c.data(),
                           .bias = bias.data(),
                           .a_scale = a_scale.data(),
                           .b_scale = b_scale.data(),
                           .d = d.data(),
                           .workspace = workspace.data(),
                           .a_factors = a_factors.data(),
                           .b_factors = b_factors.data()};
    RETURN_IF_ERROR(Launch(kernel, product, output, addresses, workspace_bytes));
    ASSIGN_OR_RETURN(const DerivedOperand of_a, kernel.derived(product.problem, mma::Operand::kA));
    ASSIGN_OR_RETURN(const DerivedOperand of_b, kernel.derived(product.problem, mma::Operand::kB));
    ASSIGN_OR_RETURN(const DeviceBuffer a_form, DeviceBuffer::Allocate(of_a.bytes));
    ASSIGN_OR_RETURN(const DeviceBuffer b_form, DeviceBuffer::Allocate(of_b.bytes));
    const int64_t rest_bytes = workspace_bytes - of_a.bytes - of_b.bytes;
    ASSIGN_OR_RETURN(const DeviceBuffer rest, DeviceBuffer::Allocate(rest_bytes));
    addresses.workspace = rest.data();
    for (const bool are_made : {false, true}) {
      if (of_a.bytes > 0) addresses.a_form = {a_form.data(), are_made};
      if (of_b.bytes > 0) addresses.b_form = {b_form.data(), are_made};
      if (of_a.bytes + of_b.bytes == 0) break;
      RETURN_IF_ERROR(Launch(kernel, product, output, addresses, rest_bytes));
    }
    if (d_bytes > 0) {
      RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(output.data() + kGuardBytes, d.data(), d_bytes,
                                                 cudaMemcpyDeviceToHost, stream_.get()),
                                 "copy out"));
    }
    return Wait();
  }
};

std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (!word.empty() && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "unknown";
}

std::string VersionText(int version) { return Concat(version / 1000, ".", version % 1000 / 10); }

}  // namespace

absl::StatusOr<std::unique_ptr<KernelRunner>> MakeCudaRunner(Placement placement) {
  ASSIGN_OR_RETURN(const CudaGpu gpu, FindCudaGpu());
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, 0), "properties"));
  const Target target = {.kind = DeviceKind::kCuda,
                         .chip = gpu.chip,
                         .multiprocessors = properties.multiProcessorCount};
  ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  if (placement == Placement::kApart) {
    return std::make_unique<ApartRunner>(target, std::move(stream));
  }
  return std::make_unique<TogetherRunner>(target, std::move(stream));
}

absl::StatusOr<CudaGpu> FindCudaGpu() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(
        GotWant("GPU", error == cudaSuccess ? "none" : cudaGetErrorString(error), "one"));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, 0), "properties"));
  const std::string chip = Concat("sm_", properties.major, properties.minor);
  const std::optional<mma::Chip> found = mma::ChipFromName(chip);
  if (!found) return absl::FailedPreconditionError(GotWant("GPU", chip, "a chip of the tables"));
  int runtime = 0;
  RETURN_IF_ERROR(CudaStatus(cudaRuntimeGetVersion(&runtime), "version"));
  return CudaGpu{.facts = {.name = properties.name,
                           .chip = chip,
                           .driver = DriverVersion(),
                           .cuda = VersionText(runtime),
                           .commit = ""},
                 .chip = *found};
}

}  // namespace gemmd
