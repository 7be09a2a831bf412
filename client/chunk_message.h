// SPDX-License-Identifier: Apache-2.0
//
// Messages with bytes of tensors, made and read without copying those: protobuf would copy them
// twice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gemmd/v1/resident.pb.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace gemmd {

// What stands before the bytes of a PutRequest with a chunk of them, which they then end.
std::string PutChunkHeader(int64_t offset, int64_t bytes);

// A whole message.
grpc::ByteBuffer ToByteBuffer(const google::protobuf::MessageLite& message);

// One answer of Get: a description, or a chunk, whose bytes lie in slices of what arrived.
struct GetStep {
  bool is_chunk = false;
  v1::TensorInfo tensor = {};
  int64_t offset = 0;
  std::vector<grpc::Slice> data = {};
  int64_t bytes = 0;  // What all slices have.
};

// Errors: DataLoss where the bytes are no such answer.
absl::StatusOr<GetStep> ReadGetResponse(const grpc::ByteBuffer& message);

// Errors: DataLoss where the bytes are no such answer.
absl::StatusOr<v1::PutResponse> ReadPutResponse(const grpc::ByteBuffer& message);

}  // namespace gemmd
