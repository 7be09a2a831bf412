// SPDX-License-Identifier: Apache-2.0
#include "server/wire/read_request.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/incoming.h"

namespace gemmd {

grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request) {
  grpc::ByteBuffer taken;
  // gRPC has made it for this call, and does nothing more with it than to destroy it.
  const_cast<grpc::ByteBuffer&>(request).Swap(&taken);
  return taken;
}

absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& request) {
  if (bytes.Length() > kMaxRequestBytes) {
    return absl::ResourceExhaustedError(
        GotWant("request", Concat(bytes.Length(), " bytes"), Concat("at most ", kMaxRequestBytes)));
  }
  grpc::ByteBuffer references(bytes);  // To the same memory: they are taken out of a buffer.
  Incoming incoming(references);
  RETURN_IF_ERROR(incoming.Examine(request).status());
  request.Clear();
  grpc::ByteBuffer parsed(bytes);
  grpc::ProtoBufferReader reader(&parsed);
  // Text that is no UTF-8 shows only now.
  if (!reader.status().ok() || !request.ParseFromZeroCopyStream(&reader)) {
    return absl::InvalidArgumentError("message: got bytes that are no message of this method");
  }
  request.DiscardUnknownFields();
  return absl::OkStatus();
}

}  // namespace gemmd
