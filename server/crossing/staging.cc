// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/staging.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"

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
}

FreeRanges::FreeRanges(int64_t bytes) : bytes_(bytes / kAlignment * kAlignment) {
  if (bytes_ > 0) free_[0] = bytes_;
}

std::optional<int64_t> FreeRanges::Take(int64_t bytes) {
  if (bytes == 0) return 0;
  if (bytes < 0 || bytes > bytes_) return std::nullopt;
  const int64_t rounded = Rounded(bytes);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [rounded](const auto& range) { return range.second >= rounded; });
  if (found == free_.end()) return std::nullopt;
  const auto [offset, length] = *found;
  free_.erase(found);
  if (length > rounded) free_[offset + rounded] = length - rounded;
  taken_bytes_ += rounded;
  return offset;
}

void FreeRanges::GiveBack(int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  int64_t length = Rounded(bytes);
  taken_bytes_ -= length;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

int64_t FreeRanges::longest_bytes() const {
  int64_t longest = 0;
  for (const auto& [offset, length] : free_) longest = std::max(longest, length);
  return longest;
}

}  // namespace gemmd
