// SPDX-License-Identifier: Apache-2.0
#include "server/wire/examination.h"

#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "gemmd/v1/tensors.pb.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/incoming.h"

namespace gemmd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A field of bytes at least as long gets its room before it is parsed: protobuf lets longer ones
// (50 MB and more) grow by doubling, which takes up to three times their size.
constexpr int kRoomMadeFromBytes = 1 << 20;

// Factors get their room, too: a million of them would be copied as often as they fill a slice of
// gRPC's twice as long as before, for milliseconds.
void MakeRoomForFactors(int bytes, Message& message) {
  auto* const scale = google::protobuf::DynamicCastToGenerated<v1::Scale>(&message);
  if (scale == nullptr) return;
  const int more = bytes / static_cast<int>(sizeof(float));
  scale->mutable_values()->Reserve(scale->values_size() + more);
}

bool IsTypeOf(const FieldDescriptor& field, uint32_t tag) {
  const WireFormatLite::WireType type = WireFormatLite::GetTagWireType(tag);
  if (field.is_packable() && type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) return true;
  return type ==
         WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
}

}  // namespace

absl::Status MalformedMessage() {
  return absl::InvalidArgumentError("message: got bytes that are no message of this method");
}

absl::Status TooManyFields() {
  return absl::InvalidArgumentError(
      GotWant("message", Concat("more than ", kMostFields, " fields"), "no more"));
}

absl::Status Examination::Run(Message& message) {
  RETURN_IF_ERROR(Fields(message, Holding::kAllowed));
  MergeUntil(input_.CurrentPosition());
  return absl::OkStatus();
}

absl::Status Examination::Fields(Message& message, Holding holding) {
  int start = input_.CurrentPosition();
  while (const uint32_t tag = input_.ReadTag()) {
    if (++fields_ > kMostFields) return TooManyFields();
    const FieldDescriptor* const field =
        message.GetDescriptor()->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool is_known = field != nullptr && IsTypeOf(*field, tag);
    RETURN_IF_ERROR(is_known ? Known(*field, tag, start, message, holding) : Unknown(tag, start));
    start = input_.CurrentPosition();
  }
  // ReadTag gives 0 at the end, and for what cannot be a tag.
  return input_.ConsumedEntireMessage() ? absl::OkStatus() : MalformedMessage();
}

// `start` is where the field's tag begins.
absl::Status Examination::Unknown(uint32_t tag, int start) {
  if (!WireFormatLite::SkipField(&input_, tag)) return MalformedMessage();
  unknown_bytes_ += input_.CurrentPosition() - start;
  if (unknown_bytes_ <= kMaxUnknownBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat("message: got at least ", unknown_bytes_,
                                           " bytes of unknown fields, want at most ",
                                           kMaxUnknownBytes));
}

absl::Status Examination::Known(const Field& field, uint32_t tag, int start, Message& message,
                                Holding holding) {
  Forget(message, field);
  if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
    return Delimited(field, start, message, holding);
  }
  const int before = input_.CurrentPosition();
  if (!WireFormatLite::SkipField(&input_, tag)) return MalformedMessage();
  if (field.is_repeated()) repeated_bytes_ += input_.CurrentPosition() - before;
  return absl::OkStatus();
}

absl::Status Examination::Delimited(const Field& field, int start, Message& message,
                                    Holding holding) {
  uint32_t bytes = 0;
  if (!input_.ReadVarint32(&bytes)) return MalformedMessage();
  // Everything is inside of what came, or it is malformed: no room is made for what is not here.
  const int left = input_.BytesUntilLimit();
  if (left >= 0 && bytes > static_cast<uint32_t>(left)) return MalformedMessage();
  const int size = static_cast<int>(bytes);
  if (field.is_repeated()) {
    repeated_bytes_ += size;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return Element(field, size, message);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) MakeRoomForFactors(size, message);
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return Within(field, start, size, message, holding);
  } else if (field.type() == FieldDescriptor::TYPE_BYTES) {
    return Bytes(field, start, size, message, holding);
  } else if (field.type() == FieldDescriptor::TYPE_STRING && size > kMostTextBytes) {
    return absl::InvalidArgumentError(
        GotWant(field.name(), Concat(size, " bytes"), Concat("at most ", kMostTextBytes)));
  }
  return input_.Skip(size) ? absl::OkStatus() : MalformedMessage();
}

absl::Status Examination::Within(const Field& field, int start, int bytes, Message& message,
                                 Holding holding) {
  // A message of a oneof may be replaced by another one while the rest is parsed.
  if (field.real_containing_oneof() != nullptr) holding = Holding::kForbidden;
  const int64_t merged_before = merged_;
  const size_t steps_before = steps_.size();
  const CodedInputStream::Limit limit = input_.PushLimit(bytes);
  MergeUntil(start);
  steps_.push_back({.kind = ParsingStep::Kind::kEnter, .field = &field});
  merged_ = input_.CurrentPosition();
  const size_t entered = steps_.size();
  RETURN_IF_ERROR(Fields(*message.GetReflection()->MutableMessage(&message, &field), holding));
  input_.PopLimit(limit);
  if (steps_.size() == entered) {
    // Nothing of it stays: protobuf parses it as one field like all others.
    steps_.erase(steps_.begin() + static_cast<ptrdiff_t>(steps_before), steps_.end());
    merged_ = merged_before;
    return absl::OkStatus();
  }
  MergeUntil(input_.CurrentPosition());
  steps_.push_back({.kind = ParsingStep::Kind::kLeave});
  return absl::OkStatus();
}

// One of several messages, or an entry of a map. It is looked through, and nothing of it stays.
absl::Status Examination::Element(const Field& field, int bytes, const Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const std::unique_ptr<Message> element(
      reflection.GetMessageFactory()->GetPrototype(field.message_type())->New());
  const CodedInputStream::Limit limit = input_.PushLimit(bytes);
  RETURN_IF_ERROR(Fields(*element, Holding::kForbidden));
  input_.PopLimit(limit);
  return absl::OkStatus();
}

absl::Status Examination::Bytes(const Field& field, int start, int bytes, Message& message,
                                Holding holding) {
  const WireRange range = {input_.CurrentPosition(), int64_t{input_.CurrentPosition()} + bytes};
  if (!input_.Skip(bytes)) return MalformedMessage();
  if (holding == Holding::kAllowed && bytes >= kHeldFromBytes && IsInFewSlices(range)) {
    MergeUntil(start);
    steps_.push_back({.kind = ParsingStep::Kind::kHold, .field = &field});
    merged_ = range.end;
    held_.push_back({&message, &field, range});
  } else if (bytes >= kRoomMadeFromBytes) {
    std::string room;
    room.reserve(static_cast<size_t>(bytes));
    message.GetReflection()->SetString(&message, &field, std::move(room));
  }
  return absl::OkStatus();
}

bool Examination::IsInFewSlices(WireRange range) {
  int64_t count = 0;
  while (slice_ < slices_.size()) {
    const int64_t slice_end = slice_begin_ + static_cast<int64_t>(slices_[slice_].size());
    if (slice_end > range.begin) ++count;
    if (slice_end >= range.end) break;  // The next field may begin in it.
    slice_begin_ = slice_end;
    ++slice_;
  }
  return (range.end - range.begin) / kLeastSliceBytes >= count;
}

// What came before is replaced by another occurrence of the field, or of one of its oneof.
void Examination::Forget(const Message& message, const Field& field) {
  const auto is_replaced = [&](const FieldToHold& held) {
    if (held.message != &message) return false;
    return held.field == &field || (field.real_containing_oneof() != nullptr &&
                                    held.field->containing_oneof() == field.containing_oneof());
  };
  held_.erase(std::remove_if(held_.begin(), held_.end(), is_replaced), held_.end());
}

void Examination::MergeUntil(int64_t end) {
  if (end > merged_) {
    steps_.push_back({.kind = ParsingStep::Kind::kMerge, .range = {merged_, end}});
  }
  merged_ = end;
}

}  // namespace gemmd
