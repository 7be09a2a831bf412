// SPDX-License-Identifier: Apache-2.0
//
// A runtime, with or without CUDA, that fails as a script says: for tests of the code around it.
//
// The script is a file that may appear while the worker runs, or exist from the start: it is read
// and removed before the next call. Each line is "FUNCTION N ACTION": what to do at the Nth call of
// the function of GpuRuntime, counted from then on. Other calls are passed on.
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
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "server/worker/gpu_runtime.h"

namespace gemmd {

class ScriptedRuntime final : public GpuRuntime {
 public:
  // Only returns if the launch fails.
  using EndlessLoop = absl::Status (*)();

  // Borrows the runtime. The environment variable GEMMD_WORKER_SCRIPT names the script.
  ScriptedRuntime(GpuRuntime& inner, EndlessLoop endless_loop);

  // The folder that the worker must be able to write, to remove the script.
  std::string script_folder() const;

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
  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override;
  absl::Status Compress(const CompressView& view, BadGroup* bad) override;
  absl::Status Mark(Lane lane, Moment moment) override;
  absl::Status Follow(Lane lane, Moment moment) override;
  absl::StatusOr<bool> IsReached(Moment moment) override;
  absl::Status Wait() override;
  absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) override;
  bool IsLost() override { return is_lost_ || inner_.IsLost(); }

 private:
  void ReadScript();
  // The script's action for this call of the function; empty if there is none.
  std::string TakeAction(const std::string& function);
  // Does the script's action, or the given one.
  absl::Status Act(const std::string& function);
  absl::Status Act(const std::string& function, const std::string& action);

  GpuRuntime& inner_;
  const EndlessLoop endless_loop_;
  const std::string script_;
  std::map<std::pair<std::string, int>, std::string> actions_;
  std::map<std::string, int> calls_;
  bool is_lost_ = false;
};

}  // namespace gemmd
