// SPDX-License-Identifier: Apache-2.0
#include "tests/server/worker/delayed_gpu_runtime.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/matrix/sparse_groups.h"
#include "kernels/matrix/status.h"

namespace gemmd {

void DelayedGpuRuntime::Add(Lane lane, std::function<void()> action) {
  Of(lane).push_back([action = std::move(action)] {
    action();
    return true;
  });
}

absl::Status DelayedGpuRuntime::CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) {
  Add(lane, [=, this] { FakeGpuRuntime::CopyIn(lane, to, from).IgnoreError(); });
  return absl::OkStatus();
}

absl::Status DelayedGpuRuntime::CopyOut(Lane lane, absl::Span<std::byte> to,
                                        const std::byte* from) {
  Add(lane, [=, this] { FakeGpuRuntime::CopyOut(lane, to, from).IgnoreError(); });
  return absl::OkStatus();
}

absl::Status DelayedGpuRuntime::CopyLines(Lane lane, const MemoryLines& lines) {
  Add(lane, [=, this] { FakeGpuRuntime::CopyLines(lane, lines).IgnoreError(); });
  return absl::OkStatus();
}

absl::Status DelayedGpuRuntime::CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                                          int64_t max_bytes) {
  Add(lane, [=, this] { FakeGpuRuntime::CopyParts(lane, parts, count, max_bytes).IgnoreError(); });
  return absl::OkStatus();
}

absl::Status DelayedGpuRuntime::Clear(Lane lane, std::byte* memory, int64_t bytes) {
  Add(lane, [=, this] { FakeGpuRuntime::Clear(lane, memory, bytes).IgnoreError(); });
  return absl::OkStatus();
}

// The arguments point to a problem that is gone by then.
absl::Status DelayedGpuRuntime::Launch(const Kernel& kernel, const GemmArgs& args) {
  const auto problem = std::make_shared<Problem>(args.problem);
  Add(Lane::kCompute, [this, problem, args, &kernel] {
    const GemmArgs kept = {.problem = *problem,
                           .target = args.target,
                           .a = args.a,
                           .b = args.b,
                           .c = args.c,
                           .bias = args.bias,
                           .a_scale = args.a_scale,
                           .b_scale = args.b_scale,
                           .d = args.d,
                           .workspace = args.workspace,
                           .a_factors = args.a_factors,
                           .b_factors = args.b_factors};
    FakeGpuRuntime::Launch(kernel, kept).IgnoreError();
  });
  return absl::OkStatus();
}

absl::Status DelayedGpuRuntime::Compress(const CompressView& view, BadGroup* bad) {
  Add(Lane::kCompute, [=, this] { FakeGpuRuntime::Compress(view, bad).IgnoreError(); });
  return absl::OkStatus();
}

absl::Status DelayedGpuRuntime::Mark(Lane lane, Moment moment) {
  const uint64_t times = ++moments_[moment].marked;
  Add(lane, [this, lane, moment, times] {
    moments_[moment].reached = times;
    FakeGpuRuntime::Mark(lane, moment).IgnoreError();
  });
  return absl::OkStatus();
}

absl::Status DelayedGpuRuntime::Follow(Lane lane, Moment moment) {
  const uint64_t times = moments_[moment].marked;
  Of(lane).push_back([this, moment, times] { return moments_[moment].reached >= times; });
  return absl::OkStatus();
}

bool DelayedGpuRuntime::IsEmpty() const {
  return std::all_of(steps_.begin(), steps_.end(),
                     [](const std::deque<Step>& steps) { return steps.empty(); });
}

// Does some steps of a random lane. A lane may not proceed for long.
void DelayedGpuRuntime::DoSome() {
  constexpr uint64_t kMaxSteps = 4;
  std::deque<Step>& steps = steps_[random_() % steps_.size()];
  for (uint64_t left = random_() % kMaxSteps; left > 0 && !steps.empty(); --left) {
    if (!steps.front()()) return;
    steps.pop_front();
  }
}

absl::StatusOr<bool> DelayedGpuRuntime::IsReached(Moment moment) {
  RETURN_IF_ERROR(FakeGpuRuntime::Wait());
  DoSome();
  const MomentState& state = moments_[moment];
  return state.reached >= state.marked;
}

absl::Status DelayedGpuRuntime::Wait() {
  while (!IsEmpty()) DoSome();
  return FakeGpuRuntime::Wait();
}

}  // namespace gemmd
