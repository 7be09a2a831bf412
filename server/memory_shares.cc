// SPDX-License-Identifier: Apache-2.0
#include "server/memory_shares.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "server/system/resources.h"
#include "server/wire/transport.h"

namespace gemmd {
namespace {

constexpr int64_t kMostAdmittedBytes = int64_t{4} << 30;

void SetUnasked(int64_t& bytes, int64_t share_bytes) {
  if (bytes == 0) bytes = share_bytes;
}

}  // namespace

ServerOptions WithMemoryShares(ServerOptions options) {
  int64_t& limit = options.memory_limit_bytes;
  SetUnasked(limit, MemoryLimitBytes());
  // Whatever was asked for, no more can be mapped.
  const std::optional<int64_t> left_bytes = AddressSpaceLeft();
  if (left_bytes) limit = std::min(limit, ResidentBytes().value_or(0) + *left_bytes);
  SetUnasked(options.admission.max_bytes, std::min(kMostAdmittedBytes, limit / 8 * 3));
  SetUnasked(options.transport.memory_quota_bytes, limit / 4);
  SetUnasked(options.tensors.max_bytes, limit / 8);
  SetUnasked(options.tensors.max_session_bytes, options.tensors.max_bytes / 2);
  return options;
}

}  // namespace gemmd
