// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/launcher.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/crossing/shared_memory.h"
#include "server/system/resources.h"

namespace gemmd {
namespace {

constexpr size_t kWorkspaceAlignment = 64;  // GemmArgs::workspace.

// A workspace larger than this is returned to the system after the launch that needed it.
constexpr int64_t kKeptWorkspaceBytes = int64_t{64} << 20;

// From this size, the remaining address space is checked.
constexpr int64_t kLargeBytes = int64_t{1} << 20;

}  // namespace

void Launcher::FreeDeleter::operator()(std::byte* memory) const { std::free(memory); }

absl::Status Launcher::Launch(const Kernel& kernel, GemmArgs args, int64_t workspace_bytes) {
  RETURN_IF_ERROR(Reserve(workspace_bytes));
  args.workspace = absl::MakeSpan(workspace_.get(), static_cast<size_t>(workspace_bytes_));
  const absl::Status status =
      OrNoMemory("kernel: no memory for its scratch buffers", [&] { return kernel.launch(args); });
  if (workspace_bytes_ > kKeptWorkspaceBytes) Cool();
  if (poisons_freed_) Poison({workspace_.get(), static_cast<size_t>(workspace_bytes_)});
  return status;
}

void Launcher::Cool() {
  workspace_.reset();
  workspace_bytes_ = 0;
}

absl::Status Launcher::Reserve(int64_t bytes) {
  if (bytes <= workspace_bytes_) return absl::OkStatus();
  Cool();
  void* memory = nullptr;
  const bool is_there =
      posix_memalign(&memory, kWorkspaceAlignment, static_cast<size_t>(bytes)) == 0;
  workspace_.reset(static_cast<std::byte*>(memory));
  if (!is_there || (bytes >= kLargeBytes && !HasSpareAddresses())) {
    Cool();
    return absl::ResourceExhaustedError(Concat("workspace: no memory for ", bytes, " bytes"));
  }
  workspace_bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace gemmd
