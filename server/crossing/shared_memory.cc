// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/mutex.h"
#include "server/system/resources.h"

namespace gemmd {

namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status NoMemory(int64_t bytes, std::string_view call) {
  return absl::ResourceExhaustedError(
      Concat("staging: no ", bytes, " bytes: ", call, ": ", strerror(errno)));
}

int64_t Rounded(int64_t bytes) {
  constexpr int64_t kAlignment = FreeRanges::kAlignment;
  return bytes / kAlignment * kAlignment + (bytes % kAlignment == 0 ? 0 : kAlignment);
}

// The areas that Create made and that still exist.
struct Areas {
  Mutex mutex;
  std::set<int> descriptors ABSL_GUARDED_BY(mutex);
};

Areas& AreasOfProcess() {
  static auto& areas = *new Areas;
  return areas;
}

}  // namespace

absl::StatusOr<Staging> Staging::Create(int64_t bytes) {
  Staging staging;
  staging.file_ = FileDescriptor(memfd_create("gemmd-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!staging.file_.is_open()) return NoMemory(bytes, "memfd_create");
  const int64_t all = bytes + int64_t{kControlBytes};
  if (ftruncate(staging.descriptor(), all) != 0) return NoMemory(bytes, "ftruncate");
  if (fcntl(staging.descriptor(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return NoMemory(bytes, "sealing");
  }
  RETURN_IF_ERROR(staging.MapAll(staging.descriptor(), static_cast<size_t>(all)));
  Areas& areas = AreasOfProcess();
  MutexLock lock(&areas.mutex);
  areas.descriptors.insert(staging.descriptor());
  return staging;
}

absl::StatusOr<Staging> Staging::Map(int descriptor) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  struct stat facts = {};
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(descriptor, &facts) != 0 ||
      facts.st_size <= int64_t{kControlBytes}) {
    return absl::InvalidArgumentError("staging: got another file, want a sealed memfd");
  }
  Staging staging;
  RETURN_IF_ERROR(staging.MapAll(descriptor, static_cast<size_t>(facts.st_size)));
  return staging;
}

absl::Status Staging::MapAll(int descriptor, size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return NoMemory(static_cast<int64_t>(bytes), "mmap");
  mapped_ = absl::MakeSpan(static_cast<std::byte*>(mapped), bytes);
  return absl::OkStatus();
}

Staging& Staging::operator=(Staging&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Staging::~Staging() {
  if (!mapped_.empty()) munmap(mapped_.data(), mapped_.size());
  if (!file_.is_open()) return;
  Areas& areas = AreasOfProcess();
  MutexLock lock(&areas.mutex);
  areas.descriptors.erase(descriptor());
}

int64_t Staging::ResidentBytesOfAll() {
  constexpr int64_t kBlockBytes = 512;  // Source: inode(7), st_blocks.
  Areas& areas = AreasOfProcess();
  MutexLock lock(&areas.mutex);
  int64_t bytes = 0;
  for (const int descriptor : areas.descriptors) {
    struct stat facts = {};
    if (fstat(descriptor, &facts) == 0) bytes += facts.st_blocks * kBlockBytes;
  }
  return bytes;
}

FreeRanges::FreeRanges(int64_t bytes) : bytes_(bytes / kAlignment * kAlignment) {
  if (bytes_ > 0) Add(0, bytes_);
}

void FreeRanges::Add(int64_t offset, int64_t length) {
  free_[offset] = length;
  by_length_.emplace(length, offset);
}

void FreeRanges::Remove(std::map<int64_t, int64_t>::iterator range) {
  by_length_.erase({range->second, range->first});
  free_.erase(range);
}

namespace {

// Changes a free range. Allocates nothing: alternating takes and returns mostly change one range.
void Change(std::map<int64_t, int64_t>& free, std::set<std::pair<int64_t, int64_t>>& by_length,
            std::map<int64_t, int64_t>::iterator range, int64_t offset, int64_t length) {
  auto of_length = by_length.extract({range->second, range->first});
  of_length.value() = {length, offset};
  by_length.insert(std::move(of_length));
  auto at_offset = free.extract(range);
  at_offset.key() = offset;
  at_offset.mapped() = length;
  free.insert(std::move(at_offset));
}

}  // namespace

std::optional<int64_t> FreeRanges::Take(int64_t bytes) {
  if (bytes == 0) return 0;
  if (bytes < 0 || bytes > bytes_) return std::nullopt;
  const int64_t rounded = Rounded(bytes);
  const auto found = by_length_.lower_bound({rounded, 0});
  if (found == by_length_.end()) return std::nullopt;
  const auto [length, offset] = *found;
  const auto range = free_.find(offset);
  if (length > rounded) {
    Change(free_, by_length_, range, offset + rounded, length - rounded);
  } else {
    Remove(range);
  }
  taken_bytes_ += rounded;
  return offset;
}

void FreeRanges::GiveBack(int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  int64_t length = Rounded(bytes);
  taken_bytes_ -= length;
  const auto next = free_.lower_bound(offset);
  const bool is_next_free = next != free_.end() && next->first == offset + length;
  const auto before = next == free_.begin() ? free_.end() : std::prev(next);
  const bool is_free_before = before != free_.end() && before->first + before->second == offset;
  if (is_free_before) {
    offset = before->first;
    length += before->second;
  }
  if (is_next_free) length += next->second;
  if (is_free_before && is_next_free) Remove(next);
  if (is_free_before) {
    Change(free_, by_length_, before, offset, length);
  } else if (is_next_free) {
    Change(free_, by_length_, next, offset, length);
  } else {
    Add(offset, length);
  }
}

int64_t FreeRanges::longest_bytes() const {
  return by_length_.empty() ? 0 : by_length_.rbegin()->first;
}

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
  // The owner of a range may be the last to be destroyed.
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
  if (!Clear(memory, bytes)) std::memset(memory, 0, static_cast<size_t>(bytes));
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
