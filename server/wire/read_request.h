// SPDX-License-Identifier: Apache-2.0
//
// Reads a request that brings no operands: bounded, and without fields that are not known.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>

#include "absl/status/status.h"

namespace gemmd {

// What it has at most: its longest text is a product without operands.
inline constexpr size_t kMaxRequestBytes = size_t{1} << 20;

// Takes the bytes out of the request that gRPC gives to a method, where they would stay for as long
// as the call does: who does not read the answer, or keeps a stream open, would keep them.
grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request);

// Errors: ResourceExhausted, as gRPC has it, for too many bytes, or no memory to parse them in;
// InvalidArgument for bytes that are no such message, or have more unknown fields than Incoming
// allows.
absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& request);

}  // namespace gemmd
