// SPDX-License-Identifier: Apache-2.0
#include "client/lent_bytes.h"

namespace gemmd {

LentBytes::~LentBytes() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &LentBytes::HasAll));
}

grpc::Slice LentBytes::Lend(std::span<const std::byte> bytes) {
  {
    absl::MutexLock lock(&mutex_);
    ++lent_;
  }
  // gRPC only reads them.
  void* const memory = const_cast<std::byte*>(bytes.data());
  return grpc::Slice(memory, bytes.size(), &LentBytes::Return, this);
}

void LentBytes::Return(void* lender) {
  LentBytes& self = *static_cast<LentBytes*>(lender);
  absl::MutexLock lock(&self.mutex_);
  --self.lent_;
}

}  // namespace gemmd
