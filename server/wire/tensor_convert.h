// SPDX-License-Identifier: Apache-2.0
//
// Between the wire's messages of resident tensors and the words of server/store: descriptions,
// parts of tensors, and the messages that carry their bytes. Those are not copied: a chunk that
// arrives is read where gRPC left it, and one that leaves is a slice of the tensor's memory.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemmd/v1/resident.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "server/store/compression.h"
#include "server/store/tensor.h"
#include "server/store/tensor_store.h"
#include "server/store/upload.h"
#include "server/wire/incoming.h"

namespace gemmd {

// A range of the rows, columns and matrices of a tensor: where it lies in the tensor's bytes, and
// what it shares with another one.
struct PartOfTensor {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t first_matrix = 0;
  int64_t matrices = 0;
  int64_t offset_bytes = 0;  // Where its first element is.

  friend bool operator==(const PartOfTensor&, const PartOfTensor&) = default;
};

// Errors: OutOfRange where the range is not within the tensor; InvalidArgument where a line of it
// would not start on a whole byte, and for a part of the rows or columns of a sparse tensor.
absl::StatusOr<PartOfTensor> ParsePart(std::string_view field, const v1::TensorPart& part,
                                       const TensorSpec& spec);

// Whether the part can be written without a neighbour's bits. Errors: InvalidArgument.
absl::Status CheckWholeBytes(std::string_view field, const PartOfTensor& part,
                             const TensorSpec& spec);

// Whether it is the stored matrix of a product's operand. Errors: InvalidArgument.
absl::Status CheckShape(std::string_view field, const PartOfTensor& part, int64_t rows,
                        int64_t columns, int64_t batch, bool may_broadcast);

// Whether two parts of one tensor have an element in common.
bool Overlap(const PartOfTensor& a, const PartOfTensor& b);

// The tensor's factors for the rows of the part, or for its columns. Errors: InvalidArgument where
// it has those of the other.
absl::StatusOr<absl::Span<const float>> ScaleOfPart(std::string_view field,
                                                    const PartOfTensor& part, const Tensor& tensor,
                                                    bool by_row);

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

// Errors, except of ParseRange: InvalidArgument, as the wire contract says: "field: got X, want Y".
absl::StatusOr<TensorSpec> ParseTensorSpec(const v1::TensorSpec& spec);
absl::StatusOr<TensorName> ParseTensorRef(std::string_view field, const v1::TensorRef& ref);
Keeping ParseKeeping(const v1::NewTensor& keep);
absl::StatusOr<Compressor::Request> ParseCompress(const v1::CompressRequest& request);

// What a Put begins.
struct NewUpload {
  TensorSpec spec;
  Keeping keep;
  std::optional<Sha256Digest> digest;
};
absl::StatusOr<NewUpload> ParsePutBegin(const v1::PutBegin& begin);

// Which bytes a Get wants of a tensor of `size` bytes. Errors: OutOfRange.
absl::StatusOr<ByteRange> ParseRange(const v1::GetRequest& request, int64_t size);

// Whether the factors of 8-bit types are told: a listing would be long.
enum class Scales { kTold, kLeftOut };
v1::TensorInfo ToWire(const TensorState& state, Scales scales = Scales::kTold);
// The same, over what the message had.
void Fill(const TensorState& state, Scales scales, v1::TensorInfo& wire);

}  // namespace gemmd
