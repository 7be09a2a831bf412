// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/typed_contents.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <optional>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "kserve/v2/inference.pb.h"
#include "proto/field_start.h"
#include "server/wire/examination.h"
#include "server/wire/slice_stream.h"

namespace gemmd {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Contents = inference::InferTensorContents;

// How a datatype's elements come.
struct Coding {
  std::string_view datatype;
  int field;
  size_t bytes;   // Each element's.
  int64_t least;  // The range of those that come as varints.
  int64_t most;
  WireFormatLite::WireType wire_type;
};

constexpr Coding kCodings[] = {
    {"INT8", Contents::kIntContentsFieldNumber, 1, -128, 127, WireFormatLite::WIRETYPE_VARINT},
    {"INT32", Contents::kIntContentsFieldNumber, 4, INT32_MIN, INT32_MAX,
     WireFormatLite::WIRETYPE_VARINT},
    {"UINT8", Contents::kUintContentsFieldNumber, 1, 0, 255, WireFormatLite::WIRETYPE_VARINT},
    {"FP32", Contents::kFp32ContentsFieldNumber, 4, 0, 0, WireFormatLite::WIRETYPE_FIXED32},
    {"FP64", Contents::kFp64ContentsFieldNumber, 8, 0, 0, WireFormatLite::WIRETYPE_FIXED64},
};

const Coding* FindCoding(std::string_view datatype) {
  for (const Coding& coding : kCodings) {
    if (coding.datatype == datatype) return &coding;
  }
  return nullptr;
}

std::string NameOfField(int number) {
  const auto* const field = Contents::descriptor()->FindFieldByNumber(number);
  return field == nullptr ? "an unknown field" : field->name();
}

int64_t BytesOf(const SliceList& slices) {
  int64_t bytes = 0;
  for (const grpc::Slice& slice : slices) bytes += static_cast<int64_t>(slice.size());
  return bytes;
}

// Keeps the bytes from `begin` on.
void RemoveBeginning(size_t begin, ReceivedSlices& slices) {
  size_t whole = 0;
  while (whole < slices.size() && slices[whole].size() <= begin) begin -= slices[whole++].size();
  slices.EraseBefore(whole);
  if (begin > 0) slices.front() = slices.front().sub(begin, slices.front().size());
}

class Decoder {
 public:
  Decoder(std::string_view field, const Coding& coding, CodedInputStream& input)
      : field_(field), coding_(coding), input_(input) {}

  absl::StatusOr<std::string> Run() {
    while (const uint32_t tag = input_.ReadTag()) {
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      if (number != coding_.field) {
        return absl::InvalidArgumentError(
            GotWant(Concat(field_, ".contents"), NameOfField(number),
                    Concat(NameOfField(coding_.field), " for ", coding_.datatype)));
      }
      RETURN_IF_ERROR(Field(WireFormatLite::GetTagWireType(tag)));
    }
    return input_.ConsumedEntireMessage() ? absl::StatusOr<std::string>(std::move(elements_))
                                          : MalformedMessage();
  }

 private:
  absl::Status Field(WireFormatLite::WireType type) {
    if (type == coding_.wire_type) return Elements(/*end=*/input_.CurrentPosition() + 1);
    if (type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) return MalformedMessage();
    uint32_t bytes = 0;
    if (!input_.ReadVarint32(&bytes) || bytes > static_cast<uint32_t>(input_.BytesUntilLimit())) {
      return MalformedMessage();
    }
    const auto limit = input_.PushLimit(static_cast<int>(bytes));
    RETURN_IF_ERROR(Elements(input_.CurrentPosition() + static_cast<int>(bytes)));
    input_.PopLimit(limit);
    return absl::OkStatus();
  }

  // Reads elements until it has come to `end`.
  absl::Status Elements(int end) {
    const bool are_varints = coding_.wire_type == WireFormatLite::WIRETYPE_VARINT;
    while (input_.CurrentPosition() < end) {
      uint64_t bits = 0;
      if (!Read(bits)) return MalformedMessage();
      const auto value = static_cast<int64_t>(bits);
      if (are_varints && (value < coding_.least || value > coding_.most)) return OutOfRange(value);
      uint8_t bytes[sizeof(bits)];
      CodedOutputStream::WriteLittleEndian64ToArray(bits, bytes);
      elements_.append(reinterpret_cast<const char*>(bytes), coding_.bytes);
    }
    return absl::OkStatus();
  }

  bool Read(uint64_t& bits) {
    if (coding_.wire_type == WireFormatLite::WIRETYPE_VARINT) return input_.ReadVarint64(&bits);
    if (coding_.wire_type == WireFormatLite::WIRETYPE_FIXED64) {
      return input_.ReadLittleEndian64(&bits);
    }
    uint32_t word = 0;
    const bool is_read = input_.ReadLittleEndian32(&word);
    bits = word;
    return is_read;
  }

  absl::Status OutOfRange(int64_t value) const {
    return absl::InvalidArgumentError(
        GotWant(Concat(field_, ".contents.", NameOfField(coding_.field), "[",
                       elements_.size() / coding_.bytes, "]"),
                Concat(value), Concat(coding_.least, " to ", coding_.most)));
  }

  const std::string_view field_;
  const Coding& coding_;
  CodedInputStream& input_;
  std::string elements_;
};

}  // namespace

bool StripPackedFloats(std::string_view datatype, ReceivedSlices& contents) {
  const Coding* const coding = FindCoding(datatype);
  if (coding == nullptr || coding->wire_type == WireFormatLite::WIRETYPE_VARINT) return false;
  const int64_t all = BytesOf(contents);
  int begin = 0;
  {
    SliceStream stream(contents, SliceStream::After::kKeep);
    CodedInputStream input(&stream);
    uint32_t bytes = 0;
    if (input.ReadTag() != DelimitedTag(coding->field) || !input.ReadVarint32(&bytes)) return false;
    begin = input.CurrentPosition();
    if (begin + int64_t{bytes} != all) return false;
  }
  RemoveBeginning(static_cast<size_t>(begin), contents);
  return true;
}

absl::StatusOr<std::string> DecodeContents(std::string_view field, std::string_view datatype,
                                           ReceivedSlices& contents) {
  const Coding* const coding = FindCoding(datatype);
  if (coding == nullptr) {
    return absl::InvalidArgumentError(
        GotWant(Concat(field, ".contents"), "values", Concat("raw_input_contents for ", datatype)));
  }
  SliceStream stream(contents, SliceStream::After::kKeep);
  CodedInputStream input(&stream);
  (void)input.PushLimit(static_cast<int>(BytesOf(contents)));
  return Decoder(field, *coding, input).Run();
}

}  // namespace gemmd
