// SPDX-License-Identifier: Apache-2.0
#include "server/worker/device_arena.h"

#include <algorithm>
#include <optional>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// Slabs are multiples of this: taking one takes longer than most jobs.
constexpr int64_t kGranuleBytes = int64_t{2} << 20;

}  // namespace

DeviceArena::~DeviceArena() {
  for (const Slab& slab : slabs_) runtime_.Free(slab.memory);
}

bool DeviceArena::is_idle() const {
  return std::all_of(slabs_.begin(), slabs_.end(),
                     [](const Slab& slab) { return slab.ranges.taken_bytes() == 0; });
}

absl::StatusOr<DeviceArena::Range> DeviceArena::Reserve(int64_t bytes) {
  if (bytes == 0) return Range();
  if (bytes > limit_bytes_) {
    return absl::ResourceExhaustedError(
        GotWant("device memory", Concat(bytes, " bytes to compute in"),
                Concat("at most ", std::max(limit_bytes_, int64_t{0}))));
  }
  Slab* slab = FindRoom(bytes);
  if (slab == nullptr) {
    ASSIGN_OR_RETURN(slab, AddSlab(bytes));
  }
  const std::optional<int64_t> offset = slab->ranges.Take(bytes);
  if (!offset) return absl::InternalError("arena: a slab has less room than it told of");
  return Range{.memory = slab->memory + *offset, .bytes = bytes};
}

// The slab with the least room that suffices, so that small jobs leave room for large ones.
DeviceArena::Slab* DeviceArena::FindRoom(int64_t bytes) {
  Slab* best = nullptr;
  for (Slab& slab : slabs_) {
    if (slab.ranges.longest_bytes() < bytes) continue;
    if (best == nullptr || slab.ranges.longest_bytes() < best->ranges.longest_bytes()) best = &slab;
  }
  return best;
}

absl::StatusOr<DeviceArena::Slab*> DeviceArena::AddSlab(int64_t bytes) {
  const int64_t rounded = ((bytes - 1) / kGranuleBytes + 1) * kGranuleBytes;
  if (rounded > limit_bytes_ - bytes_) FreeIdle();
  constexpr int64_t kAlignment = FreeRanges::kAlignment;
  const int64_t least = ((bytes - 1) / kAlignment + 1) * kAlignment;
  const int64_t size = std::min(rounded, (limit_bytes_ - bytes_) / kAlignment * kAlignment);
  const absl::Status later = absl::UnavailableError("device memory: other jobs have it");
  if (size < least && !is_idle()) return later;
  // The limit need not be a multiple of the alignment.
  const int64_t wanted = std::max(size, least);
  absl::StatusOr<std::byte*> memory = runtime_.Allocate(wanted);
  if (absl::IsResourceExhausted(memory.status()) && !slabs_.empty()) {
    FreeIdle();
    if (!slabs_.empty()) return later;
    memory = runtime_.Allocate(wanted);
  }
  RETURN_IF_ERROR(memory.status());
  slabs_.push_back({.memory = *memory, .ranges = FreeRanges(wanted)});
  bytes_ += wanted;
  return &slabs_.back();
}

void DeviceArena::GiveBack(const Range& range) {
  if (range.bytes == 0) return;
  for (Slab& slab : slabs_) {
    if (range.memory < slab.memory || range.memory >= slab.memory + slab.ranges.bytes()) continue;
    slab.ranges.GiveBack(range.memory - slab.memory, range.bytes);
  }
}

void DeviceArena::FreeIdle() {
  const auto is_taken = [](const Slab& slab) { return slab.ranges.taken_bytes() > 0; };
  const auto idle = std::stable_partition(slabs_.begin(), slabs_.end(), is_taken);
  for (auto slab = idle; slab != slabs_.end(); ++slab) {
    runtime_.Free(slab->memory);
    bytes_ -= slab->ranges.bytes();
  }
  slabs_.erase(idle, slabs_.end());
}

}  // namespace gemmd
