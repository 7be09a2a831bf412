// SPDX-License-Identifier: Apache-2.0
//
// Converts between messages about resident tensors and the types of server/store: descriptions,
// parts of tensors, and the messages with their bytes. Bytes are not copied: an incoming chunk is
// read in gRPC's slices, and an outgoing one is a slice of the tensor's memory.
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

// A range of the rows, columns and matrices of a tensor.
struct PartOfTensor {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t first_matrix = 0;
  int64_t matrices = 0;
  int64_t offset_bytes = 0;  // Of its first element.

  friend bool operator==(const PartOfTensor&, const PartOfTensor&) = default;
};

// Errors: OutOfRange if the range is not within the tensor; InvalidArgument if a line of the part
// would not start on a whole byte, and for a part of the rows or columns of a sparse tensor.
absl::StatusOr<PartOfTensor> ParsePart(std::string_view field, const v1::TensorPart& part,
                                       const TensorSpec& spec);

// Checks that the part can be written without changing bits of its neighbours. Errors:
// InvalidArgument.
absl::Status CheckWholeBytes(std::string_view field, const PartOfTensor& part,
                             const TensorSpec& spec);

// Checks that the part has the shape of a product's operand as stored. Errors: InvalidArgument.
absl::Status CheckShape(std::string_view field, const PartOfTensor& part, int64_t rows,
                        int64_t columns, int64_t batch, bool may_broadcast);

// Whether two parts of one tensor share an element.
bool Overlap(const PartOfTensor& a, const PartOfTensor& b);

// The tensor's scale factors for the part's rows, or for its columns. Errors: InvalidArgument if
// the tensor's factors are for the other axis.
absl::StatusOr<absl::Span<const float>> ScaleOfPart(std::string_view field,
                                                    const PartOfTensor& part, const Tensor& tensor,
                                                    bool by_row);

// The blocks of a tensor that keeps factors of them, for a part that a product uses as A, or as B.
struct BlocksOfPart {
  BlockScale blocks;
  int64_t offset_bytes = 0;  // Of the part's factors in the tensor.
  int64_t bytes = 0;
};
// `batch` are the product's matrices. Errors: InvalidArgument if k runs along the other axis, or if
// the part has not all of k, begins within a block, or has some lines of several matrices.
absl::StatusOr<BlocksOfPart> BlocksOf(std::string_view field, const PartOfTensor& part,
                                      const TensorSpec& spec, bool is_k_along_columns,
                                      int64_t batch);

// The maximum number of bytes in a chunk: to hash and copy it occupies a thread of gRPC's for a few
// milliseconds.
inline constexpr int64_t kMaxChunkBytes = int64_t{1} << 20;

// The maximum size of a Put request. A first message has room for a quarter of a million scale
// factors.
inline constexpr size_t kMaxPutBytes = static_cast<size_t>(kMaxChunkBytes) + (size_t{64} << 10);

// One request of a Put call. The chunk's pieces point into `slices`.
struct PutMessage {
  struct Chunk {
    int64_t offset = 0;
    std::vector<absl::Span<const std::byte>> pieces;
  };

  // On the heap, so that pieces stay valid when the message is moved: a short slice stores its
  // bytes inside itself.
  std::unique_ptr<ReceivedSlices> slices;
  std::optional<Chunk> chunk;
  v1::PutRequest other;  // The request, if `chunk` is absent.
};

// Errors: InvalidArgument for more than kMaxPutBytes, for bytes that are not such a message, and
// for a chunk of more than kMaxChunkBytes.
absl::StatusOr<PutMessage> ReadPutRequest(const grpc::ByteBuffer& bytes);

// The GetResponse with the chunk that begins at `offset` in the tensor. `owner` keeps the bytes
// alive until gRPC has released them.
grpc::ByteBuffer ChunkAnswer(int64_t offset, absl::Span<const std::byte> bytes,
                             std::shared_ptr<const void> owner);

// Errors, except of ParseRange: InvalidArgument, as the wire contract says: "field: got X, want Y".
absl::StatusOr<TensorSpec> ParseTensorSpec(const v1::TensorSpec& spec);
absl::StatusOr<TensorName> ParseTensorRef(std::string_view field, const v1::TensorRef& ref);
Keeping ParseKeeping(const v1::NewTensor& keep);
absl::StatusOr<Compressor::Request> ParseCompress(const v1::CompressRequest& request);

// The arguments of a Put that starts an upload.
struct NewUpload {
  TensorSpec spec;
  Keeping keep;
  std::optional<Sha256Digest> digest;
};
absl::StatusOr<NewUpload> ParsePutBegin(const v1::PutBegin& begin);

// The range of bytes that a Get asks for, in a tensor of `size` bytes. Errors: OutOfRange.
absl::StatusOr<ByteRange> ParseRange(const v1::GetRequest& request, int64_t size);

// Whether to include the scale factors of 8-bit types, which would make a listing long.
enum class Scales { kTold, kLeftOut };
v1::TensorInfo ToWire(const TensorState& state, Scales scales = Scales::kTold);
// The same, written over an existing message.
void Fill(const TensorState& state, Scales scales, v1::TensorInfo& wire);

}  // namespace gemmd
