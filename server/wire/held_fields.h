// SPDX-License-Identifier: Apache-2.0
//
// The long fields of a message, whose bytes stay where gRPC received them: in slices, of which the
// message that is made of the rest knows nothing.
#pragma once

#include <google/protobuf/message.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/device/job.h"
#include "server/wire/receive_quota.h"
#include "server/wire/received_slices.h"

namespace gemmd {

// The bytes of one field.
class HeldField final : public PieceKeeper {
 public:
  // Bytes that are in gRPC's quota: borrows it. No slice is empty.
  HeldField(ReceivedSlices slices, ReceiveQuota& quota);
  ~HeldField() override { quota_.Stay(-bytes_left_); }
  HeldField(const HeldField&) = delete;
  HeldField& operator=(const HeldField&) = delete;

  const PieceList& pieces() const { return pieces_; }
  int64_t bytes() const { return bytes_; }

  void LetGo(size_t first, size_t count) override;

 private:
  ReceivedSlices slices_;
  PieceList pieces_;  // One for each slice.
  int64_t bytes_ = 0;
  std::atomic<int64_t> bytes_left_ = 0;
  ReceiveQuota& quota_;
};

// The fields of one message, some of which are held.
class HeldFields {
 public:
  // What is held of a field of bytes; null where the message itself has them.
  HeldField* Find(const google::protobuf::Message& message, int number) const;

  // `message` is where it is when the whole message is used.
  void Add(const google::protobuf::Message& message, int number, std::unique_ptr<HeldField> field);

  bool empty() const { return fields_.empty(); }

 private:
  struct Entry {
    const google::protobuf::Message* message;
    int number;
    std::unique_ptr<HeldField> field;
  };
  std::vector<Entry> fields_;
};

}  // namespace gemmd
