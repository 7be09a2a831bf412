// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/datatype.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <optional>
#include <string>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "kserve/v2/inference.pb.h"
#include "proto/field_start.h"
#include "server/wire/convert.h"
#include "server/wire/incoming.h"

namespace gemmd {

namespace {

struct Datatype {
  std::string_view name;
  ElementType type;
  inference::DataType config;
};

constexpr Datatype kDatatypes[] = {
    {"FP64", ElementType::kF64, inference::TYPE_FP64},
    {"FP32", ElementType::kF32, inference::TYPE_FP32},
    {"FP16", ElementType::kF16, inference::TYPE_FP16},
    {"BF16", ElementType::kBf16, inference::TYPE_BF16},
    {"INT8", ElementType::kS8, inference::TYPE_INT8},
    {"UINT8", ElementType::kU8, inference::TYPE_UINT8},
    {"INT32", ElementType::kS32, inference::TYPE_INT32},
};
constexpr std::string_view kWantedDatatypes = "FP64, FP32, FP16, BF16, INT8, UINT8 or INT32";

const Datatype* FindDatatype(std::string_view name) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.name == name) return &datatype;
  }
  return nullptr;
}

const Datatype& CarrierOf(ElementType type) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.type == type) return datatype;
  }
  return *FindDatatype(type == ElementType::kTf32 ? "FP32" : "UINT8");
}

}  // namespace

std::string_view DatatypeOf(ElementType type) { return CarrierOf(type).name; }
inference::DataType ConfigDatatypeOf(ElementType type) { return CarrierOf(type).config; }
bool IsToldByDatatype(ElementType type) { return CarrierOf(type).type == type; }

int64_t RowExtent(ElementType type, int64_t elements) {
  const int bits = BitsOf(type);
  if (bits >= 8) return elements;
  return elements / 8 * bits + (elements % 8 * bits + 7) / 8;
}

ElementType TypeOfWire(v1::ElementType type) {
  return ParseType("type", type, ElementType::kF32).value_or(ElementType::kF32);
}

absl::StatusOr<ElementType> ParseTypeName(std::string_view field, std::string_view name) {
  if (const std::optional<ElementType> type = ElementTypeFromName(name)) return *type;
  if (const Datatype* const datatype = FindDatatype(name)) return datatype->type;
  return absl::InvalidArgumentError(
      GotWant(field, Shown(name), "an element type such as f16 or e4m3, or a datatype"));
}

absl::StatusOr<ElementType> ParseInputType(std::string_view field, std::string_view datatype,
                                           std::string_view name, std::optional<ElementType> own) {
  const Datatype* const known = FindDatatype(datatype);
  if (known == nullptr) {
    return absl::InvalidArgumentError(
        GotWant(Concat(field, ".datatype"), datatype.empty() ? "none" : Shown(datatype),
                Concat(kWantedDatatypes, ", or UINT8 with a parameter \"type\"")));
  }
  if (name.empty()) {
    return own.has_value() && CarrierOf(*own).name == datatype ? *own : known->type;
  }
  ASSIGN_OR_RETURN(const ElementType type, ParseTypeName(Concat(field, ".parameters.type"), name));
  if (CarrierOf(type).name == datatype) return type;
  return absl::InvalidArgumentError(
      GotWant(Concat(field, ".datatype"), Shown(datatype),
              Concat(CarrierOf(type).name, " for elements of type ", NameOf(type))));
}

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
