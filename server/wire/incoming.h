// SPDX-License-Identifier: Apache-2.0
//
// A message between its arrival and its being parsed. What a peer sends is looked through before
// anything is made of it, because a parsed message may be many times as large as its bytes: 16 MiB
// of unknown groups become 400 MB.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

// Bytes of fields that the wire contract does not have, in one message: newer clients may send a
// few. They are never kept.
inline constexpr int64_t kMaxUnknownBytes = 1024;

class Incoming {
 public:
  // Takes the bytes out of `buffer`.
  explicit Incoming(grpc::ByteBuffer& buffer);

  int64_t wire_bytes() const { return wire_bytes_; }

  // The most bytes that Parse takes at any time beside an empty message, wire bytes included.
  // Makes room in `message` for each long field, so that parsing moves none of them.
  // Errors: InvalidArgument where the bytes are no message of this type, or have more than
  // kMaxUnknownBytes that are unknown; ResourceExhausted where there is no memory.
  absl::StatusOr<int64_t> Examine(google::protobuf::Message& message);

  // Parses into the message that was examined. The wire's bytes are freed as they are parsed, and
  // are gone afterwards. Errors: as Examine.
  absl::Status Parse(google::protobuf::Message& message);

 private:
  std::vector<grpc::Slice> slices_;
  int64_t wire_bytes_ = 0;
  bool has_unknown_fields_ = false;
};

}  // namespace gemmd
