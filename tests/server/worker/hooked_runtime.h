// SPDX-License-Identifier: Apache-2.0
//
// A runtime of a GPU, with or without CUDA, whose calls pass through a hook, and two hooks: one
// does the work in random order, and one fails as a script says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/matrix/status.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

// A call of a function of GpuRuntime, whose name is that of the function.
struct GpuCall {
  std::string_view function;
  Lane lane = Lane::kCompute;
  Moment moment = 0;
  const Kernel* kernel = nullptr;  // Of Launch.
  const GemmArgs* args = nullptr;  // Of Launch; gone when the call returns.
};

class HookedRuntime final : public GpuRuntime {
 public:
  // Makes the call. For work in a lane except Launch, it may be called after the hook has returned.
  using PassOn = std::function<absl::Status()>;
  // Called in place of each call. A call that is not passed on has the hook's status and, if that
  // is OK, an empty result: IsReached returns false.
  using Hook = std::function<absl::Status(const GpuCall& call, const PassOn& pass_on)>;

  // Borrows the runtime.
  HookedRuntime(GpuRuntime& inner, Hook hook) : inner_(inner), hook_(std::move(hook)) {}

  absl::StatusOr<GpuDescription> Open(int ordinal) override {
    return Get<GpuDescription>({.function = "Open"}, [&] { return inner_.Open(ordinal); });
  }
  absl::StatusOr<std::byte*> RegisterStaging(absl::Span<std::byte> staging) override {
    return Get<std::byte*>({.function = "RegisterStaging"},
                           [&] { return inner_.RegisterStaging(staging); });
  }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    return Get<std::byte*>({.function = "Allocate"}, [&] { return inner_.Allocate(bytes); });
  }
  void Free(std::byte* memory) override {
    hook_({.function = "Free"}, [] { return absl::OkStatus(); }).IgnoreError();
    inner_.Free(memory);
  }
  absl::Status CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) override {
    return hook_({.function = "CopyIn", .lane = lane},
                 [=, this] { return inner_.CopyIn(lane, to, from); });
  }
  absl::Status CopyOut(Lane lane, absl::Span<std::byte> to, const std::byte* from) override {
    return hook_({.function = "CopyOut", .lane = lane},
                 [=, this] { return inner_.CopyOut(lane, to, from); });
  }
  absl::Status CopyLines(Lane lane, const MemoryLines& lines) override {
    return hook_({.function = "CopyLines", .lane = lane},
                 [=, this] { return inner_.CopyLines(lane, lines); });
  }
  absl::Status CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                         int64_t max_bytes) override {
    return hook_({.function = "CopyParts", .lane = lane},
                 [=, this] { return inner_.CopyParts(lane, parts, count, max_bytes); });
  }
  absl::Status Clear(Lane lane, std::byte* memory, int64_t bytes) override {
    return hook_({.function = "Clear", .lane = lane},
                 [=, this] { return inner_.Clear(lane, memory, bytes); });
  }
  absl::Status Gather(Lane lane, absl::Span<const ElementGather> gathers) override {
    return hook_({.function = "Gather", .lane = lane},
                 [=, this, all = std::vector<ElementGather>(gathers.begin(), gathers.end())] {
                   return inner_.Gather(lane, all);
                 });
  }
  absl::Status Launch(Lane lane, const Kernel& kernel, const GemmArgs& args) override {
    return hook_({.function = "Launch", .lane = lane, .kernel = &kernel, .args = &args},
                 [&] { return inner_.Launch(lane, kernel, args); });
  }
  absl::Status Compress(const CompressView& view, BadGroup* bad) override;
  absl::Status Mark(Lane lane, Moment moment) override {
    return hook_({.function = "Mark", .lane = lane, .moment = moment},
                 [=, this] { return inner_.Mark(lane, moment); });
  }
  absl::Status Follow(Lane lane, Moment moment) override {
    return hook_({.function = "Follow", .lane = lane, .moment = moment},
                 [=, this] { return inner_.Follow(lane, moment); });
  }
  absl::StatusOr<bool> IsReached(Moment moment) override {
    return Get<bool>({.function = "IsReached", .moment = moment},
                     [&] { return inner_.IsReached(moment); });
  }
  absl::Status Wait() override {
    return hook_({.function = "Wait"}, [&] { return inner_.Wait(); });
  }
  absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) override {
    return Get<int64_t>({.function = "NanosecondsBetween"},
                        [&] { return inner_.NanosecondsBetween(start, end); });
  }
  bool IsLost() override {
    const absl::StatusOr<bool> lost = Get<bool>(
        {.function = "IsLost"}, [&]() -> absl::StatusOr<bool> { return inner_.IsLost(); });
    return !lost.ok() || *lost;
  }

 private:
  template <typename Result, typename Call>
  absl::StatusOr<Result> Get(const GpuCall& call, Call pass_on) {
    absl::StatusOr<Result> result = Result();
    RETURN_IF_ERROR(hook_(call, [&] {
      result = pass_on();
      return result.status();
    }));
    return result;
  }

  GpuRuntime& inner_;
  const Hook hook_;
};

// The lanes of the runtime proceed in random order, as late as possible: nothing is done before
// somebody asks how far a lane is. A missing dependency shows as wrong bits.
HookedRuntime::Hook InRandomOrder(GpuRuntime& inner, uint64_t seed);

// Fails as a script says: for tests of the code around the runtime.
//
// The script is a file that the environment variable GEMMD_WORKER_SCRIPT names. It may appear while
// the worker runs, or exist from the start: it is read and removed before the next call. Each line
// is "FUNCTION N ACTION": what to do at the Nth call of the function of GpuRuntime, counted from
// then on. Other calls are passed on.
//   memory          fails with ResourceExhausted
//   error           fails with Internal, once
//   lost            fails with Internal, and so does everything from then on
//   hang            never returns
//   stop            the process stops until it gets SIGCONT, and then continues normally
//   abort, exit     the process ends
//   rights          fails with Internal, and reports the worker's rights (rights.h)
// and only for calls of Launch:
//   skip            does nothing and reports success
//   flip            a bit of its D is wrong: the second highest of the element of row and column 0
//   illegal_address the kernel writes its result to an address without memory
//   endless_loop    the GPU runs an endless kernel, and the call waits for it
// `run_endless_loop` only returns if the launch fails.
HookedRuntime::Hook AsTheScriptSays(GpuRuntime& inner, absl::Status (*run_endless_loop)());

// The folder that the worker must be able to write, to remove the script.
std::string ScriptFolder();

}  // namespace gemmd
