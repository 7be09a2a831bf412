// SPDX-License-Identifier: Apache-2.0
#include "client/product_answer.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemmd/v1/gemm.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "proto/field_start.h"

namespace gemmd {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

absl::Status NoAnswer() {
  return absl::DataLossError("answer: got bytes that are no MultiplyResponse");
}

// Copies one field as it is.
bool Keep(uint32_t tag, CodedInputStream& input, std::string& to) {
  StringOutputStream stream(&to);
  CodedOutputStream output(&stream);
  return WireFormatLite::SkipField(&input, tag, &output);
}

class AnswerReader {
 public:
  AnswerReader(CodedInputStream& input, std::span<std::byte> into) : input_(input), into_(into) {}

  absl::Status Read() {
    while (const uint32_t tag = NextTag(input_)) {
      if (tag != DelimitedTag(v1::MultiplyResponse::kDFieldNumber)) {
        if (!Keep(tag, input_, rest_)) return NoAnswer();
        continue;
      }
      int bytes = 0;
      if (!input_.ReadVarintSizeAsInt(&bytes) || bytes > input_.BytesUntilLimit()) {
        return NoAnswer();
      }
      const CodedInputStream::Limit limit = input_.PushLimit(bytes);
      if (absl::Status status = ReadMatrix(); !status.ok()) return status;
      input_.PopLimit(limit);
    }
    if (!input_.ConsumedEntireMessage()) return NoAnswer();
    if (!response.ParseFromString(rest_)) return NoAnswer();
    return matrix_.empty() || response.mutable_d()->ParseFromString(matrix_) ? absl::OkStatus()
                                                                             : NoAnswer();
  }

  v1::MultiplyResponse response;
  std::unique_ptr<std::byte[]> own;
  std::span<const std::byte> data;

 private:
  absl::Status ReadMatrix() {
    while (const uint32_t tag = NextTag(input_)) {
      const bool is_read =
          tag == DelimitedTag(v1::Matrix::kDataFieldNumber) || Keep(tag, input_, matrix_);
      if (!is_read) return NoAnswer();
      if (tag != DelimitedTag(v1::Matrix::kDataFieldNumber)) continue;
      if (absl::Status status = ReadData(); !status.ok()) return status;
    }
    return input_.ConsumedEntireMessage() ? absl::OkStatus() : NoAnswer();
  }

  absl::Status ReadData() {
    int bytes = 0;
    if (!input_.ReadVarintSizeAsInt(&bytes) || bytes > input_.BytesUntilLimit()) return NoAnswer();
    const auto size = static_cast<size_t>(bytes);
    std::byte* to = into_.data();
    if (into_.empty()) {
      // Not cleared first: every byte is written.
      own = std::make_unique_for_overwrite<std::byte[]>(size);
      to = own.get();
    } else if (into_.size() != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("into: got ", into_.size(), " bytes, want ", size, ", as D has"));
    }
    data = {to, size};
    return input_.ReadRaw(to, bytes) ? absl::OkStatus() : NoAnswer();
  }

  CodedInputStream& input_;
  const std::span<std::byte> into_;
  std::string rest_;  // The fields of the answer without D, and those of D without its bytes.
  std::string matrix_;
};

}  // namespace

absl::StatusOr<MultiplyResult> ReadProductAnswer(grpc::ByteBuffer& answer,
                                                 std::span<std::byte> into) {
  const int bytes = static_cast<int>(answer.Length());
  grpc::ProtoBufferReader stream(&answer);
  if (!stream.status().ok()) return NoAnswer();
  CodedInputStream input(&stream);
  const CodedInputStream::Limit limit = input.PushLimit(bytes);
  AnswerReader reader(input, into);
  if (absl::Status status = reader.Read(); !status.ok()) return status;
  input.PopLimit(limit);
  if (!into.empty() && reader.data.size() != into.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("into: got ", into.size(), " bytes, want 0, as D has"));
  }
  return MultiplyResult::FromParts(std::move(reader.response), reader.data, std::move(reader.own));
}

}  // namespace gemmd
