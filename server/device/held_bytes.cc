// SPDX-License-Identifier: Apache-2.0
#include "server/device/held_bytes.h"

#include <cstdlib>

#include "server/system/spare_addresses.h"

namespace gemmd {
namespace {

constexpr int64_t kLargeBytes = int64_t{1} << 20;

}  // namespace

std::optional<HeldBytes> HeldBytes::Zeros(int64_t bytes) {
  if (bytes == 0) return HeldBytes();
  const auto size = static_cast<size_t>(bytes);
  // Where malloc maps a block for it, the zeros are the system's, and no byte is written twice.
  auto* const memory = static_cast<std::byte*>(std::calloc(size, 1));
  if (memory == nullptr) return std::nullopt;
  if (bytes >= kLargeBytes && !HasSpareAddresses()) {
    std::free(memory);
    return std::nullopt;
  }
  return HeldBytes({memory, size}, [memory] { std::free(memory); });
}

}  // namespace gemmd
