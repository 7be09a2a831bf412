// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels of the host: in the calling thread, as in a worker, or, for the daemon, in a worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "server/crossing/per_operand.h"

namespace gemmd {

// One launch. Everything is borrowed until it is done.
struct LaunchTask {
  const Kernel& kernel;
  const GemmArgs& args;         // Except for the workspace, which the launcher provides.
  int64_t workspace_bytes = 0;  // Kernel::workspace_bytes.
  int64_t predicted_ns = 0;
  PerOperand<int64_t> bytes = {};  // The lengths of the operands of GemmArgs.
  int64_t a_form_bytes = 0;
  int64_t b_form_bytes = 0;
  int64_t d_bytes = 0;
};

// Threads: one.
class Launcher {
 public:
  virtual ~Launcher() = default;

  // Blocks until D is written. Errors: those of the kernel; ResourceExhausted if there is no
  // memory; Aborted if the worker was lost meanwhile; Unavailable if there is no worker.
  virtual absl::Status Launch(const LaunchTask& task) = 0;

  // Releases the memory that is kept for the next launch.
  virtual void Cool() = 0;
};

// Runs kernels itself, and keeps memory for their workspaces.
class LocalLauncher final : public Launcher {
 public:
  // With `poisons_freed`, the workspace is overwritten after each launch.
  explicit LocalLauncher(bool poisons_freed) : poisons_freed_(poisons_freed) {}

  absl::Status Launch(const LaunchTask& task) override;
  void Cool() override;

 private:
  struct FreeDeleter {
    void operator()(std::byte* memory) const;
  };

  absl::Status Reserve(int64_t bytes);

  const bool poisons_freed_;
  std::unique_ptr<std::byte, FreeDeleter> workspace_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace gemmd
