// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <utility>

#include "kernels/status_macros.h"
#include "server/system/resources.h"

namespace gemmd {
namespace {

constexpr int64_t kPageBytes = 4096;

int64_t Pages(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

std::atomic<SharedMemory*> of_process = nullptr;

}  // namespace

absl::Status SharedMemory::OpenForProcess(bool has_tensors) {
  if (OfProcess() != nullptr) return absl::OkStatus();
  const int64_t machine_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const std::optional<int64_t> addresses = AddressSpaceLeft();
  const int64_t bytes = addresses ? *addresses / 4 : 4 * machine_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory, Create(bytes / kPageBytes * kPageBytes));
  memory->has_tensors_ = has_tensors;
  SharedMemory* nobody = nullptr;
  // Whoever has a range of it may be the last to go.
  if (of_process.compare_exchange_strong(nobody, memory.get())) (void)memory.release();
  return absl::OkStatus();
}

SharedMemory* SharedMemory::OfProcess() { return of_process.load(std::memory_order_acquire); }

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(int64_t bytes) {
  ASSIGN_OR_RETURN(Staging staging, Staging::Create(bytes));
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(staging)));
}

SharedMemory::SharedMemory(Staging staging)
    : staging_(std::move(staging)),
      ranges_(static_cast<int64_t>(staging_.matrices().size()) / kPageBytes * kPageBytes) {}

std::byte* SharedMemory::Take(int64_t bytes) {
  MutexLock lock(&mutex_);
  const std::optional<int64_t> offset = ranges_.Take(Pages(bytes));
  return offset ? staging_.matrices().data() + *offset : nullptr;
}

void SharedMemory::GiveBack(std::byte* memory, int64_t bytes) {
  Clear(memory, bytes);
  MutexLock lock(&mutex_);
  ranges_.GiveBack(memory - staging_.matrices().data(), Pages(bytes));
}

bool SharedMemory::Clear(std::byte* memory, int64_t bytes) const {
  return madvise(memory, static_cast<size_t>(Pages(bytes)), MADV_REMOVE) == 0;
}

std::optional<int64_t> SharedMemory::OffsetOf(const std::byte* memory) const {
  const absl::Span<std::byte> all = staging_.matrices();
  const std::less<const std::byte*> is_before;
  if (is_before(memory, all.data()) || !is_before(memory, all.data() + all.size())) {
    return std::nullopt;
  }
  return memory - all.data();
}

}  // namespace gemmd
