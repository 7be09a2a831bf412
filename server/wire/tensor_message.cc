// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/incoming.h"

namespace gemmd {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type);
}
constexpr uint32_t kChunkTag =
    Tag(v1::PutRequest::kChunkFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kOffsetTag =
    Tag(v1::PutChunk::kOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kDataTag =
    Tag(v1::PutChunk::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

// Protobuf reads no more bytes of a tag, of a length and of a number.
constexpr int kTagBytes = 5;
constexpr int kLengthBytes = 5;
constexpr int kNumberBytes = 10;

// Reads slices in their order.
class SliceReader {
 public:
  explicit SliceReader(const SliceList& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) left_ += slice.size();
  }

  size_t left() const { return left_; }

  std::optional<uint64_t> Varint(int most_bytes) {
    uint64_t value = 0;
    for (int shift = 0; shift < 7 * most_bytes; shift += 7) {
      if (left_ == 0) return std::nullopt;
      const std::byte byte = Take(1).front();
      value |= static_cast<uint64_t>(byte & std::byte{0x7f}) << shift;
      if ((byte & std::byte{0x80}) == std::byte{0}) return value;
    }
    return std::nullopt;
  }

  // The next bytes, which are there, in pieces.
  std::vector<absl::Span<const std::byte>> Pieces(size_t bytes) {
    std::vector<absl::Span<const std::byte>> pieces;
    while (bytes > 0) {
      pieces.push_back(Take(bytes));
      bytes -= pieces.back().size();
    }
    return pieces;
  }

 private:
  // As many of the next bytes as lie in one slice.
  absl::Span<const std::byte> Take(size_t most) {
    while (at_ == slices_[slice_].size()) {
      ++slice_;
      at_ = 0;
    }
    const grpc::Slice& slice = slices_[slice_];
    const size_t count = std::min(most, slice.size() - at_);
    const auto* const data = reinterpret_cast<const std::byte*>(slice.begin()) + at_;
    at_ += count;
    left_ -= count;
    return {data, count};
  }

  const SliceList& slices_;
  size_t slice_ = 0;
  size_t at_ = 0;
  size_t left_ = 0;
};

// A message that is one chunk and nothing else, as all serializers write it; otherwise nothing.
std::optional<PutMessage::Chunk> ReadChunk(const SliceList& slices) {
  SliceReader reader(slices);
  if (reader.Varint(kTagBytes) != kChunkTag || reader.Varint(kLengthBytes) != reader.left()) {
    return std::nullopt;
  }
  PutMessage::Chunk chunk;
  for (int64_t fields = 0; reader.left() > 0; ++fields) {
    if (fields == kMostFields) return std::nullopt;
    const std::optional<uint64_t> tag = reader.Varint(kTagBytes);
    const std::optional<uint64_t> value =
        reader.Varint(tag == kOffsetTag ? kNumberBytes : kLengthBytes);
    if (!value) return std::nullopt;
    if (tag == kOffsetTag) {
      chunk.offset = static_cast<int64_t>(*value);
    } else if (tag == kDataTag && *value <= reader.left()) {
      chunk.pieces = reader.Pieces(static_cast<size_t>(*value));
    } else {
      return std::nullopt;
    }
  }
  return chunk;
}

void Release(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

}  // namespace

absl::StatusOr<PutMessage> ReadPutRequest(const grpc::ByteBuffer& bytes) {
  if (bytes.Length() > kMaxPutBytes) {
    return absl::InvalidArgumentError(
        GotWant("message", Concat(bytes.Length(), " bytes"), Concat("at most ", kMaxPutBytes)));
  }
  PutMessage message;
  message.slices = std::make_unique<ReceivedSlices>(SlicesIn(bytes));
  message.chunk = ReadChunk(*message.slices);
  if (!message.chunk) {
    RETURN_IF_ERROR(Incoming(*message.slices).Examine(message.other).status());
    message.other.Clear();
    grpc::ByteBuffer copy(bytes);  // References only: the reader takes a buffer that it may change.
    grpc::ProtoBufferReader reader(&copy);
    if (!reader.status().ok() || !message.other.ParseFromZeroCopyStream(&reader)) {
      return absl::InvalidArgumentError("message: got bytes that are no message of this method");
    }
    if (message.other.step_case() == v1::PutRequest::kChunk) {
      message.slices->clear();
      message.slices->emplace_back(message.other.chunk().data());
      const grpc::Slice& data = message.slices->front();
      message.chunk = PutMessage::Chunk();
      PutMessage::Chunk& chunk = *message.chunk;
      chunk.offset = message.other.chunk().offset();
      chunk.pieces.push_back({reinterpret_cast<const std::byte*>(data.begin()), data.size()});
    }
  }
  if (!message.chunk) return message;
  int64_t count = 0;
  for (const auto& piece : message.chunk->pieces) count += static_cast<int64_t>(piece.size());
  if (count > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        Concat("chunk.data: got ", count, " bytes, want at most ", kMaxChunkBytes));
  }
  return message;
}

grpc::ByteBuffer ChunkAnswer(int64_t offset, absl::Span<const std::byte> bytes,
                             std::shared_ptr<const void> owner) {
  // The fields of the chunk before its bytes.
  uint8_t fields[32];
  uint8_t* end = fields;
  end = CodedOutputStream::WriteVarint32ToArray(
      Tag(v1::GetChunk::kOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT), end);
  end = CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(offset), end);
  end = CodedOutputStream::WriteVarint32ToArray(
      Tag(v1::GetChunk::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), end);
  end = CodedOutputStream::WriteVarint64ToArray(bytes.size(), end);
  const auto fields_size = static_cast<size_t>(end - fields);

  uint8_t head[48];
  end = CodedOutputStream::WriteVarint32ToArray(
      Tag(v1::GetResponse::kChunkFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), head);
  end = CodedOutputStream::WriteVarint64ToArray(fields_size + bytes.size(), end);
  end = std::copy(fields, fields + fields_size, end);
  // gRPC's slices are of bytes that may be written; it only reads them.
  auto* const data = const_cast<std::byte*>(bytes.data());
  const grpc::Slice slices[] = {
      grpc::Slice(head, static_cast<size_t>(end - head)),
      grpc::Slice(data, bytes.size(), Release, new std::shared_ptr<const void>(std::move(owner)))};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace gemmd
