// SPDX-License-Identifier: Apache-2.0
//
// The messages of Tensors that carry bytes of tensors, without a copy of these: a chunk that
// arrives is read where gRPC left it, and one that leaves is a slice of the tensor's memory.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemmd/v1/resident.pb.h"
#include "server/wire/received_slices.h"

namespace gemmd {

// The bytes of one chunk at most: hashed and copied, they hold a thread of gRPC's for a few
// milliseconds.
inline constexpr int64_t kMaxChunkBytes = int64_t{1} << 20;

// A request of Put at most; a first message has room for a quarter of a million factors.
inline constexpr size_t kMaxPutBytes = static_cast<size_t>(kMaxChunkBytes) + (size_t{64} << 10);

// One request of Put. The chunk's pieces lie in `slices`.
struct PutMessage {
  struct Chunk {
    int64_t offset = 0;
    std::vector<absl::Span<const std::byte>> pieces;
  };

  // Where it stays when the message is moved: a short slice has its bytes within itself.
  std::unique_ptr<ReceivedSlices> slices;
  std::optional<Chunk> chunk;
  v1::PutRequest other;  // What it is where it has no chunk in `chunk`.
};

// Errors: InvalidArgument for more than kMaxPutBytes, for bytes that are no such message, and for a
// chunk of more than kMaxChunkBytes.
absl::StatusOr<PutMessage> ReadPutRequest(const grpc::ByteBuffer& bytes);

// The GetResponse with a chunk that begins at `offset` of the tensor. `owner` keeps the bytes until
// gRPC has let go of them.
grpc::ByteBuffer ChunkAnswer(int64_t offset, absl::Span<const std::byte> bytes,
                             std::shared_ptr<const void> owner);

}  // namespace gemmd
