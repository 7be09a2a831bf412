// SPDX-License-Identifier: Apache-2.0
//
// A GPU made of host memory and the simulator: a kernel computes what the simulator's kernel of its
// instruction computes, as a GPU would. Every call does all its work at once. The staging area has
// another address than on the host. The GPU is lost, like a real one, if a kernel's D is neither
// there nor in its memory. The form that a kernel derives from an operand is a copy of its first
// bytes: if a form was made of other bytes, the launch fails with Internal.
#pragma once

#include <cstdint>
#include <map>

#include "server/worker/gpu_runtime.h"
#include "server/worker/worker.h"

namespace gemmd {

class FakeGpuRuntime : public GpuRuntime {
 public:
  static constexpr int64_t kMemoryBytes = int64_t{64} << 20;

  ~FakeGpuRuntime() override;

  absl::StatusOr<GpuDescription> Open(int ordinal) override;
  absl::StatusOr<std::byte*> RegisterStaging(absl::Span<std::byte> staging) override;
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override;
  void Free(std::byte* memory) override;
  absl::Status CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) override;
  absl::Status CopyOut(Lane lane, absl::Span<std::byte> to, const std::byte* from) override;
  absl::Status Clear(Lane lane, std::byte* memory, int64_t bytes) override;
  absl::Status CopyLines(Lane lane, const MemoryLines& lines) override;
  absl::Status CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                         int64_t max_bytes) override;
  absl::Status Gather(Lane lane, absl::Span<const ElementGather> gathers) override;
  absl::Status Launch(Lane lane, const Kernel& kernel, const GemmArgs& args) override;
  absl::Status Compress(const CompressView& view, BadGroup* bad) override;
  absl::Status Mark(Lane lane, Moment moment) override;
  absl::Status Follow(Lane lane, Moment moment) override;
  absl::StatusOr<bool> IsReached(Moment moment) override;
  absl::Status Wait() override;
  absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) override;
  bool IsLost() override { return is_lost_; }

 private:
  bool IsMemory(const std::byte* address) const;
  absl::Status UseForms(const Kernel& kernel, const GemmArgs& args) const;

  std::map<const std::byte*, int64_t> blocks_;  // Sizes in bytes, by address.
  absl::Span<std::byte> staging_;               // Where kernels see it.
  std::map<Moment, int64_t> marks_ns_;
  bool is_lost_ = false;
};

// Rates without a measurement.
absl::Status MeasureNothing(GpuRuntime& runtime, const GpuDescription& gpu,
                            absl::Span<std::byte> staging, GpuRates& rates);

}  // namespace gemmd
