// SPDX-License-Identifier: Apache-2.0
//
// A message between its arrival and its being parsed. What a peer sends is looked through before
// anything is made of it, because a parsed message may be many times as large as its bytes: 16 MiB
// of unknown groups become 400 MB.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/wire/examination.h"
#include "server/wire/held_fields.h"
#include "server/wire/receive_quota.h"
#include "server/wire/received_slices.h"

namespace gemmd {

// Bytes of fields that the wire contract does not have, in one message: newer clients may send a
// few. They are never kept.
inline constexpr int64_t kMaxUnknownBytes = 1024;

// All that the buffer holds, as it stays.
ReceivedSlices SlicesIn(const grpc::ByteBuffer& buffer);

// All that the buffer holds, which is empty then. Nothing where there is no memory for the list.
ReceivedSlices TakeSlices(grpc::ByteBuffer& buffer);

// The refusal of a message of so many bytes.
absl::Status NoMemory(int64_t bytes);

class Incoming {
 public:
  // Takes the bytes out of `buffer`.
  explicit Incoming(grpc::ByteBuffer& buffer);
  // All of its bytes.
  explicit Incoming(ReceivedSlices slices);

  int64_t wire_bytes() const { return wire_bytes_; }

  // The most bytes that Parse takes at any time beside an empty message, wire bytes included.
  // Makes room in `message` for each long field, so that parsing moves none of them.
  // Errors: InvalidArgument where the bytes are no message of this type, have more than
  // kMaxUnknownBytes that are unknown, or more than kMostFields; ResourceExhausted where there is
  // no memory.
  absl::StatusOr<int64_t> Examine(google::protobuf::Message& message);

  // The beginning of a field of text, before the message is parsed: of its last occurrence
  // among the first kMostFields and before anything that is malformed.
  std::string ShortText(int number, size_t most_bytes);

  // Parses into the message that was examined, which stays where it is. The wire's bytes are freed
  // as they are parsed, except those of long fields (kHeldFromBytes), which the message gets
  // without their bytes: they are not copied, but stay with `held`. Borrows the quota for `held`.
  // Errors: as Examine.
  absl::Status Parse(google::protobuf::Message& message, ReceiveQuota& quota, HeldFields& held);

 private:
  absl::Status Take(google::protobuf::Message& message);
  ReceivedSlices SlicesOf(WireRange range) const;

  int64_t wire_bytes_ = 0;
  ReceivedSlices slices_;
  // What the examination found.
  bool has_unknown_fields_ = false;
  ParsingSteps steps_;
  FieldsToHold to_hold_;
};

}  // namespace gemmd
