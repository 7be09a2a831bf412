// SPDX-License-Identifier: Apache-2.0
//
// The bytes of one message as gRPC has them, taken over and handed over without a copy.
//
// grpc::ByteBuffer as the type of a message would stay beside the one that gRPC sends until the
// call ends, and so keep every slice.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

namespace gemmd {

struct WireBytes {
  // Taken from a message that gRPC gives as constant.
  mutable grpc::ByteBuffer buffer;
};

}  // namespace gemmd

namespace grpc {

template <>
class SerializationTraits<gemmd::WireBytes> {
 public:
  static Status Deserialize(ByteBuffer* from, gemmd::WireBytes* to) {
    to->buffer.Swap(from);
    return Status::OK;
  }
  static Status Serialize(const gemmd::WireBytes& from, ByteBuffer* to, bool* owns_buffer) {
    to->Swap(&from.buffer);
    *owns_buffer = true;
    return Status::OK;
  }
};

}  // namespace grpc
