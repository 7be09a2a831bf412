// SPDX-License-Identifier: Apache-2.0
#include "server/wire/held_fields.h"

#include <utility>

namespace gemmd {

HeldField::HeldField(ReceivedSlices slices, ReceiveQuota& quota)
    : slices_(std::move(slices)), quota_(quota) {
  pieces_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    // A short slice has its bytes within itself, so its address is taken where it stays.
    pieces_.push_back({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
    bytes_ += static_cast<int64_t>(slice.size());
  }
  bytes_left_ = bytes_;
  quota_.Stay(bytes_);
}

void HeldField::LetGo(size_t first, size_t count) {
  int64_t bytes = 0;
  for (size_t i = first; i < first + count; ++i) {
    bytes += static_cast<int64_t>(pieces_[i].size());
  }
  slices_.LetGo(first, count);
  bytes_left_ -= bytes;
  quota_.Stay(-bytes);
}

HeldField* HeldFields::Find(const google::protobuf::Message& message, int number) const {
  for (const Entry& entry : fields_) {
    if (entry.message == &message && entry.number == number) return entry.field.get();
  }
  return nullptr;
}

void HeldFields::Add(const google::protobuf::Message& message, int number,
                     std::unique_ptr<HeldField> field) {
  fields_.push_back({&message, number, std::move(field)});
}

}  // namespace gemmd
