// SPDX-License-Identifier: Apache-2.0
#include "server/device/result_stamps.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>

namespace gemmd {

ResultStamps::ResultStamps() {
  std::random_device source;
  for (size_t i = 0; i < kBytes; i += sizeof(uint32_t)) {
    const auto word = static_cast<uint32_t>(source());
    std::memcpy(stamp_.data() + i, &word, sizeof(word));
  }
}

void ResultStamps::Put(absl::Span<std::byte> d) const {
  for (size_t at = 0; at < d.size(); at += kPageBytes) {
    const size_t bytes = std::min(kBytes, d.size() - at);
    if (bytes >= kLeastBytes) {
      std::memcpy(d.data() + at, stamp_.data(), bytes);
    } else {
      std::memset(d.data() + at, 0, bytes);
    }
  }
}

bool ResultStamps::AreLeft(absl::Span<const std::byte> d, size_t first_bytes) const {
  for (size_t at = 0; at + kLeastBytes <= d.size(); at += kPageBytes) {
    const size_t bytes = std::min(at == 0 ? first_bytes : kBytes, d.size() - at);
    if (std::memcmp(d.data() + at, stamp_.data(), bytes) == 0) return true;
  }
  return false;
}

}  // namespace gemmd
