// SPDX-License-Identifier: Apache-2.0
#include "client/chunk_message.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemmd {
namespace {

// Tags of the wire format: field << 3 | type; 0 is a number, 2 is bytes after their count.
constexpr uint8_t TagOf(int field, int type) { return static_cast<uint8_t>(field << 3 | type); }
constexpr uint8_t kPutChunkTag = TagOf(v1::PutRequest::kChunkFieldNumber, 2);
constexpr uint8_t kPutOffsetTag = TagOf(v1::PutChunk::kOffsetFieldNumber, 0);
constexpr uint8_t kPutDataTag = TagOf(v1::PutChunk::kDataFieldNumber, 2);
constexpr uint8_t kGetChunkTag = TagOf(v1::GetResponse::kChunkFieldNumber, 2);
constexpr uint8_t kGetOffsetTag = TagOf(v1::GetChunk::kOffsetFieldNumber, 0);
constexpr uint8_t kGetDataTag = TagOf(v1::GetChunk::kDataFieldNumber, 2);

// Protobuf reads no more bytes of a length and of a number.
constexpr int kLengthBytes = 5;
constexpr int kNumberBytes = 10;

// Three tags and three numbers of at most ten bytes.
constexpr size_t kMostHeaderBytes = 33;

void AppendNumber(uint64_t value, std::string& to) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

size_t NumberBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

std::string_view TextOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// The beginning of a message that lies in slices.
class HeaderReader {
 public:
  explicit HeaderReader(const std::vector<grpc::Slice>& slices) {
    for (const grpc::Slice& slice : slices) {
      bytes_ += TextOf(slice).substr(0, kMostHeaderBytes - bytes_.size());
      if (bytes_.size() == kMostHeaderBytes) break;
    }
  }

  bool TakeTag(uint8_t tag) {
    if (at_ >= bytes_.size() || static_cast<uint8_t>(bytes_[at_]) != tag) return false;
    ++at_;
    return true;
  }

  std::optional<uint64_t> TakeNumber(int most_bytes) {
    uint64_t value = 0;
    for (int shift = 0; shift < 7 * most_bytes && at_ < bytes_.size(); shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  size_t taken() const { return at_; }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

// The bytes after the first `skipped` ones.
std::vector<grpc::Slice> Rest(std::vector<grpc::Slice> slices, size_t skipped) {
  size_t first = 0;
  for (; first < slices.size() && skipped >= slices[first].size(); ++first) {
    skipped -= slices[first].size();
  }
  slices.erase(slices.begin(), slices.begin() + static_cast<std::ptrdiff_t>(first));
  if (skipped > 0 && !slices.empty()) slices[0] = slices[0].sub(skipped, slices[0].size());
  return slices;
}

// A chunk that lies as every known server writes it: one field, whose last part is the data.
std::optional<GetStep> ReadPlainChunk(const std::vector<grpc::Slice>& slices, size_t size) {
  HeaderReader header(slices);
  if (!header.TakeTag(kGetChunkTag)) return std::nullopt;
  const auto inner = header.TakeNumber(kLengthBytes);
  if (!inner.has_value() || *inner != size - header.taken()) return std::nullopt;
  uint64_t offset = 0;
  if (header.TakeTag(kGetOffsetTag)) {
    const auto number = header.TakeNumber(kNumberBytes);
    if (!number.has_value()) return std::nullopt;
    offset = *number;
  }
  if (!header.TakeTag(kGetDataTag)) return std::nullopt;
  const auto bytes = header.TakeNumber(kLengthBytes);
  if (!bytes.has_value() || *bytes != size - header.taken()) return std::nullopt;
  GetStep step;
  step.is_chunk = true;
  step.offset = static_cast<int64_t>(offset);
  step.bytes = static_cast<int64_t>(*bytes);
  step.data = Rest(slices, header.taken());
  return step;
}

template <typename Message>
absl::StatusOr<Message> Parse(const std::vector<grpc::Slice>& slices, absl::string_view name) {
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes += TextOf(slice);
  Message message;
  if (message.ParseFromString(bytes)) return message;
  return absl::DataLossError(std::string(name) +
                             ": got bytes that are no such message, want an answer of gemmd");
}

absl::StatusOr<std::vector<grpc::Slice>> SlicesOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  if (message.Dump(&slices).ok()) return slices;
  return absl::DataLossError("answer: got none, want an answer of gemmd");
}

}  // namespace

std::string PutChunkHeader(int64_t offset, int64_t bytes) {
  const uint64_t data = static_cast<uint64_t>(bytes);
  const uint64_t at = static_cast<uint64_t>(offset);
  const size_t offset_bytes = offset == 0 ? 0 : 1 + NumberBytes(at);
  std::string header(1, static_cast<char>(kPutChunkTag));
  AppendNumber(offset_bytes + 1 + NumberBytes(data) + data, header);
  if (offset != 0) {
    header.push_back(static_cast<char>(kPutOffsetTag));
    AppendNumber(at, header);
  }
  header.push_back(static_cast<char>(kPutDataTag));
  AppendNumber(data, header);
  return header;
}

grpc::ByteBuffer ToByteBuffer(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<GetStep> ReadGetResponse(const grpc::ByteBuffer& message) {
  auto slices = SlicesOf(message);
  if (!slices.ok()) return slices.status();
  auto chunk = ReadPlainChunk(*slices, message.Length());
  if (chunk.has_value()) return *std::move(chunk);
  auto response = Parse<v1::GetResponse>(*slices, "get");
  if (!response.ok()) return response.status();
  GetStep step;
  if (response->has_chunk()) {
    step.is_chunk = true;
    step.offset = response->chunk().offset();
    step.bytes = static_cast<int64_t>(response->chunk().data().size());
    step.data.emplace_back(response->chunk().data());
  } else if (response->has_tensor()) {
    step.tensor = std::move(*response->mutable_tensor());
  } else {
    return absl::DataLossError("get: got neither a tensor nor a chunk, want one of them");
  }
  return step;
}

absl::StatusOr<v1::PutResponse> ReadPutResponse(const grpc::ByteBuffer& message) {
  const auto slices = SlicesOf(message);
  if (!slices.ok()) return slices.status();
  return Parse<v1::PutResponse>(*slices, "put");
}

}  // namespace gemmd
