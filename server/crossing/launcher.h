// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels of the host in the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/kernel.h"

namespace gemmd {

// Keeps memory for the workspaces of kernels. Threads: one.
class Launcher {
 public:
  // With `poisons_freed`, the workspace is overwritten after each launch.
  explicit Launcher(bool poisons_freed) : poisons_freed_(poisons_freed) {}

  // Blocks until D is written. `args` lack the workspace; `workspace_bytes` is that of
  // Kernel::workspace_bytes. Errors: those of the kernel; ResourceExhausted if there is no memory.
  absl::Status Launch(const Kernel& kernel, GemmArgs args, int64_t workspace_bytes);

  // Releases the memory that is kept for the next launch.
  void Cool();

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
