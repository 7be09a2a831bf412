// SPDX-License-Identifier: Apache-2.0
#include "tests/server/worker/fake_gpu_runtime.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>

#include "kernels/kernel.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

constexpr int kGpus = 2;
constexpr size_t kAlignment = 256;

int64_t NowNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const Kernel* Simulated(const Kernel& kernel) {
  for (const Kernel& other : Catalog(DeviceKind::kSim)) {
    if (ShareInstruction(other, kernel)) return &other;
  }
  return nullptr;
}

}  // namespace

FakeGpuRuntime::~FakeGpuRuntime() {
  if (!staging_.empty()) munmap(staging_.data(), staging_.size());
  for (const auto& [block, bytes] : blocks_) std::free(const_cast<std::byte*>(block));
}

absl::StatusOr<GpuDescription> FakeGpuRuntime::Open(int ordinal) {
  if (ordinal >= kGpus) {
    return absl::NotFoundError(GotWant("GPU", Concat(ordinal), Concat("less than ", kGpus)));
  }
  GpuDescription gpu;
  gpu.name = "fake GPU";
  gpu.target = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 7};
  gpu.memory_bytes = 2 * kMemoryBytes;
  gpu.free_memory_bytes = kMemoryBytes;
  gpu.clock_khz = 1980000;
  gpu.memory_clock_khz = 3201000;
  gpu.driver_version = 13010;
  gpu.runtime_version = 12080;
  gpu.pci_bus_id = ordinal == 0 ? "0000:0a:00.0" : "0000:0b:00.0";  // As in fake_nvml.cc.
  return gpu;
}

absl::StatusOr<std::byte*> FakeGpuRuntime::RegisterStaging(absl::Span<std::byte> staging) {
  // Maps the pages of shared memory a second time.
  void* const seen = mremap(staging.data(), 0, staging.size(), MREMAP_MAYMOVE);
  if (seen == MAP_FAILED) return absl::ResourceExhaustedError("the fake GPU does not see staging");
  staging_ = {static_cast<std::byte*>(seen), staging.size()};
  return staging_.data();
}

absl::StatusOr<std::byte*> FakeGpuRuntime::Allocate(int64_t bytes) {
  void* block = nullptr;
  if (bytes > kMemoryBytes || posix_memalign(&block, kAlignment, static_cast<size_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(Concat("the fake GPU has no ", bytes, " bytes"));
  }
  std::memset(block, 0xab, static_cast<size_t>(bytes));  // Stands for earlier contents.
  blocks_[static_cast<std::byte*>(block)] = bytes;
  return static_cast<std::byte*>(block);
}

void FakeGpuRuntime::Free(std::byte* memory) {
  blocks_.erase(memory);
  std::free(memory);
}

absl::Status FakeGpuRuntime::CopyIn(Lane, std::byte* to, absl::Span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
  return absl::OkStatus();
}

absl::Status FakeGpuRuntime::CopyOut(Lane, absl::Span<std::byte> to, const std::byte* from) {
  std::memcpy(to.data(), from, to.size());
  return absl::OkStatus();
}

absl::Status FakeGpuRuntime::Clear(Lane, std::byte* memory, int64_t bytes) {
  std::memset(memory, 0, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status FakeGpuRuntime::CopyLines(Lane, const MemoryLines& lines) {
  for (int64_t i = 0; i < lines.lines; ++i) {
    std::memcpy(lines.to + i * lines.to_stride_bytes, lines.from + i * lines.from_stride_bytes,
                static_cast<size_t>(lines.line_bytes));
  }
  return absl::OkStatus();
}

absl::Status FakeGpuRuntime::CopyParts(Lane, const CopiedPart* parts, int64_t count,
                                       int64_t max_bytes) {
  for (const CopiedPart& part : absl::MakeConstSpan(parts, static_cast<size_t>(count))) {
    if (part.bytes == 0) continue;
    if (part.bytes > max_bytes || !IsMemory(part.from) || !IsMemory(part.to)) {
      is_lost_ = true;
      return absl::OkStatus();
    }
    std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
  }
  return absl::OkStatus();
}

bool FakeGpuRuntime::IsMemory(const std::byte* address) const {
  if (address >= staging_.begin() && address < staging_.end()) return true;
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return false;
  const auto& [block, bytes] = *std::prev(after);
  return address < block + bytes;
}

absl::Status FakeGpuRuntime::UseForms(const Kernel& kernel, const GemmArgs& args) const {
  const Problem& problem = args.problem;
  const auto use = [&](const OperandForm& form, mma::Operand operand, const MatrixLayout& layout,
                       const std::byte* data) {
    if (form.bytes == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const DerivedOperand derived, kernel.derived(problem, operand));
    ASSIGN_OR_RETURN(const ByteCount bytes, BytesOf("operand", layout, problem.batch));
    if (!IsMemory(form.bytes)) return absl::InternalError("a form is not in memory of the GPU");
    const auto count = static_cast<size_t>(std::min(derived.bytes, bytes.least));
    if (!form.is_made) std::memcpy(form.bytes, data, count);
    if (std::memcmp(form.bytes, data, count) == 0) return absl::OkStatus();
    return absl::InternalError("a form is of other bytes");
  };
  RETURN_IF_ERROR(use(args.a_form, mma::Operand::kA, problem.a, args.a));
  return use(args.b_form, mma::Operand::kB, problem.b, args.b);
}

absl::Status FakeGpuRuntime::Gather(Lane, absl::Span<const ElementGather> gathers) {
  for (const ElementGather& gather : gathers) {
    if (!IsMemory(gather.from) || !IsMemory(gather.to)) is_lost_ = true;
    if (is_lost_) return absl::OkStatus();
    GatherElements(gather);
  }
  return absl::OkStatus();
}

absl::Status FakeGpuRuntime::Launch(Lane, const Kernel& kernel, const GemmArgs& args) {
  if (!IsMemory(args.d)) {  // As on a GPU, the error shows later.
    is_lost_ = true;
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(UseForms(kernel, args));
  const Kernel* simulated = Simulated(kernel);
  if (simulated == nullptr) return absl::FailedPreconditionError("no such kernel");
  ASSIGN_OR_RETURN(const int64_t bytes, simulated->workspace_bytes(args.problem));
  constexpr size_t kWorkspaceAlignment = 64;
  void* memory = nullptr;
  if (posix_memalign(&memory, kWorkspaceAlignment, static_cast<size_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError("the simulator has no memory");
  }
  const std::unique_ptr<void, decltype(&std::free)> owner(memory, &std::free);
  const GemmArgs simulated_args = {
      .problem = args.problem,
      .target = {.kind = DeviceKind::kSim, .chip = args.target.chip},
      .a = args.a,
      .b = args.b,
      .c = args.c,
      .bias = args.bias,
      .a_scale = args.a_scale,
      .b_scale = args.b_scale,
      .d = args.d,
      .workspace = absl::MakeSpan(static_cast<std::byte*>(memory), static_cast<size_t>(bytes)),
      .a_factors = args.a_factors,
      .b_factors = args.b_factors};
  return simulated->launch(simulated_args);
}

absl::Status FakeGpuRuntime::Compress(const CompressView& view, BadGroup* bad) {
  *bad = CompressLines(view);
  return absl::OkStatus();
}

absl::Status FakeGpuRuntime::Mark(Lane, Moment moment) {
  marks_ns_[moment] = NowNs();
  return absl::OkStatus();
}

absl::Status FakeGpuRuntime::Follow(Lane, Moment) { return absl::OkStatus(); }

absl::StatusOr<bool> FakeGpuRuntime::IsReached(Moment) {
  RETURN_IF_ERROR(Wait());
  return true;
}

absl::Status FakeGpuRuntime::Wait() {
  return is_lost_ ? absl::InternalError("the fake GPU is lost") : absl::OkStatus();
}

absl::StatusOr<int64_t> FakeGpuRuntime::NanosecondsBetween(Moment start, Moment end) {
  return marks_ns_[end] - marks_ns_[start];
}

absl::Status MeasureNothing(GpuRuntime&, const GpuDescription&, absl::Span<std::byte>,
                            GpuRates& rates) {
  rates.kernel_rates.assign(Catalog(DeviceKind::kCuda).size(), 1e9);
  rates.memory_bytes_per_second = 10e9;
  rates.copied_bytes_per_second = 5e9;
  return absl::OkStatus();
}

}  // namespace gemmd
