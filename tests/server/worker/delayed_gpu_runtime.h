// SPDX-License-Identifier: Apache-2.0
//
// A fake GPU whose lanes proceed in random order, as late as possible: nothing is done before
// somebody asks how far a lane is. A missing dependency shows as wrong bits.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>

#include "tests/server/worker/fake_gpu_runtime.h"

namespace gemmd {

class DelayedGpuRuntime final : public FakeGpuRuntime {
 public:
  explicit DelayedGpuRuntime(uint64_t seed) : random_(seed) {}

  absl::Status CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) override;
  absl::Status CopyOut(Lane lane, absl::Span<std::byte> to, const std::byte* from) override;
  absl::Status CopyLines(Lane lane, const MemoryLines& lines) override;
  absl::Status CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                         int64_t max_bytes) override;
  absl::Status Clear(Lane lane, std::byte* memory, int64_t bytes) override;
  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override;
  absl::Status Compress(const CompressView& view, BadGroup* bad) override;
  absl::Status Mark(Lane lane, Moment moment) override;
  absl::Status Follow(Lane lane, Moment moment) override;
  absl::StatusOr<bool> IsReached(Moment moment) override;
  absl::Status Wait() override;

 private:
  // Returns false if it must wait for another lane.
  using Step = std::function<bool()>;
  struct MomentState {
    uint64_t marked = 0;  // The number of marks.
    uint64_t reached = 0;
  };

  void Add(Lane lane, std::function<void()> action);
  std::deque<Step>& Of(Lane lane) { return steps_[static_cast<size_t>(lane)]; }
  bool IsEmpty() const;
  void DoSome();

  std::mt19937_64 random_;
  std::array<std::deque<Step>, kAllLanes.size()> steps_;
  std::map<Moment, MomentState> moments_;
};

}  // namespace gemmd
