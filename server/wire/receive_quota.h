// SPDX-License-Identifier: Apache-2.0
//
// The memory that gRPC may take for what arrives. Where it has too much, it reads less and then
// ends calls.
//
// Bytes of a message that stay where they arrived until their product is done are in the account of
// admission from then on. gRPC counts them all the same, so its quota grows by them meanwhile.
#pragma once

#include <grpcpp/resource_quota.h>

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"

namespace gemmd {

class ReceiveQuota {
 public:
  explicit ReceiveQuota(int64_t bytes);

  const grpc::ResourceQuota& of_grpc() const { return quota_; }

  // So many more bytes stay, or fewer where it is negative. Threads: any.
  void Stay(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_);
  grpc::ResourceQuota quota_;  // Resized under the lock.
};

}  // namespace gemmd
