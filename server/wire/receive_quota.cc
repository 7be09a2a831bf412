// SPDX-License-Identifier: Apache-2.0
#include "server/wire/receive_quota.h"

namespace gemmd {

ReceiveQuota::ReceiveQuota(int64_t bytes) : bytes_(bytes), quota_("gemmd") {
  quota_.Resize(static_cast<size_t>(bytes));
}

void ReceiveQuota::Stay(int64_t bytes) {
  MutexLock lock(&mutex_);
  bytes_ += bytes;
  quota_.Resize(static_cast<size_t>(bytes_));
}

}  // namespace gemmd
