// SPDX-License-Identifier: Apache-2.0
#include "server/worker/device_arena.h"

#include <algorithm>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// Blocks are multiples of this: taking one takes longer than most jobs.
constexpr int64_t kGranuleBytes = int64_t{2} << 20;

}  // namespace

absl::StatusOr<std::byte*> DeviceArena::Reserve(int64_t bytes) {
  if (bytes <= bytes_) return block_;
  if (bytes > limit_bytes_) {
    return absl::ResourceExhaustedError(GotWant(
        "device memory", Concat(bytes, " bytes to compute in"), Concat("at most ", limit_bytes_)));
  }
  Release();
  const int64_t granules = (bytes - 1) / kGranuleBytes + 1;
  const int64_t rounded = std::max(bytes, std::min(granules * kGranuleBytes, limit_bytes_));
  ASSIGN_OR_RETURN(block_, runtime_.Allocate(rounded));
  bytes_ = rounded;
  return block_;
}

void DeviceArena::Release() {
  if (block_ != nullptr) runtime_.Free(block_);
  block_ = nullptr;
  bytes_ = 0;
}

}  // namespace gemmd
