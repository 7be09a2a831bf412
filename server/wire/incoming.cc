// SPDX-License-Identifier: Apache-2.0
#include "server/wire/incoming.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "proto/field_start.h"
#include "server/wire/slice_stream.h"

namespace gemmd {
namespace {

using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// While the values of a repeated field arrive, there may be an old array and a new one twice as
// long.
constexpr int64_t kRepeatedGrowth = 2;

int64_t SizeOf(WireRange range) { return range.end - range.begin; }

// The bytes that protobuf parses where others stay. Until it has, the slices that both are in are
// there, too.
int64_t ParsedBesideHeld(const Examination& examination) {
  if (examination.held().empty()) return 0;
  int64_t bytes = 0;
  for (const ParsingStep& step : examination.steps()) bytes += SizeOf(step.range);
  return bytes;
}

bool MergeRange(WireRange range, CodedInputStream& input, Message& message) {
  if (!input.Skip(static_cast<int>(range.begin - input.CurrentPosition()))) return false;
  const CodedInputStream::Limit limit = input.PushLimit(static_cast<int>(SizeOf(range)));
  if (!message.MergePartialFromCodedStream(&input)) return false;
  if (input.CurrentPosition() != range.end) return false;
  input.PopLimit(limit);
  return true;
}

}  // namespace

absl::Status NoMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(
      Concat("message: no memory to parse ", bytes, " bytes in, try again later"));
}

ReceivedSlices SlicesIn(const grpc::ByteBuffer& buffer) {
  ReceivedSlices one;
  grpc::Slice whole;
  if (buffer.TrySingleSlice(&whole).ok()) {
    one.push_back(std::move(whole));
    return one;
  }
  std::vector<grpc::Slice> several;
  (void)buffer.Dump(&several);  // Fails for compressed messages alone, which are not taken.
  return several;
}

ReceivedSlices TakeSlices(grpc::ByteBuffer& buffer) {
  ReceivedSlices slices;
  try {
    slices = SlicesIn(buffer);
  } catch (const std::bad_alloc&) {
  }
  buffer.Clear();
  return slices;
}

Incoming::Incoming(grpc::ByteBuffer& buffer)
    : wire_bytes_(static_cast<int64_t>(buffer.Length())), slices_(TakeSlices(buffer)) {}

Incoming::Incoming(ReceivedSlices slices) : slices_(std::move(slices)) {
  for (const grpc::Slice& slice : slices_) wire_bytes_ += static_cast<int64_t>(slice.size());
}

std::string Incoming::ShortText(int number, size_t most_bytes) {
  std::string text;
  SliceStream stream(slices_, SliceStream::After::kKeep);
  CodedInputStream input(&stream);
  const CodedInputStream::Limit whole = input.PushLimit(static_cast<int>(wire_bytes_));
  for (int64_t fields = 0; fields < kMostFields; ++fields) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) break;
    uint32_t bytes = 0;
    if (tag != DelimitedTag(number)) {
      if (!WireFormatLite::SkipField(&input, tag)) break;
    } else if (input.ReadVarint32(&bytes) &&
               bytes <= static_cast<uint32_t>(input.BytesUntilLimit())) {
      const int read = static_cast<int>(std::min<size_t>(bytes, most_bytes));
      (void)input.ReadString(&text, read);
      (void)input.Skip(static_cast<int>(bytes) - read);
    } else {
      break;
    }
  }
  input.PopLimit(whole);
  return text;
}

absl::StatusOr<int64_t> Incoming::Examine(Message& message) {
  if (slices_.empty() && wire_bytes_ > 0) return NoMemory(wire_bytes_);
  try {
    SliceStream stream(slices_, SliceStream::After::kKeep);
    CodedInputStream input(&stream);
    const CodedInputStream::Limit whole = input.PushLimit(static_cast<int>(wire_bytes_));
    Examination examination(input, slices_);
    RETURN_IF_ERROR(examination.Run(message));
    input.PopLimit(whole);
    has_unknown_fields_ = examination.unknown_bytes() > 0;
    steps_ = examination.steps();
    to_hold_ = examination.held();
    return wire_bytes_ + ParsedBesideHeld(examination) +
           kRepeatedGrowth * examination.repeated_bytes();
  } catch (const std::bad_alloc&) {
    return NoMemory(wire_bytes_);
  }
}

absl::Status Incoming::Parse(Message& message, ReceiveQuota& quota, HeldFields& held) {
  try {
    for (const FieldToHold& field : to_hold_) {
      held.Add(*field.message, field.field->number(),
               std::make_unique<HeldField>(SlicesOf(field.range), quota));
    }
    RETURN_IF_ERROR(Take(message));
    slices_.clear();
    if (has_unknown_fields_) message.DiscardUnknownFields();
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return NoMemory(wire_bytes_);
  }
}

// To merge keeps the room that was made, and the message is otherwise empty.
absl::Status Incoming::Take(Message& message) {
  SliceStream stream(slices_, SliceStream::After::kFree);
  CodedInputStream input(&stream);
  absl::InlinedVector<Message*, 4> within = {&message};
  for (const ParsingStep& step : steps_) {
    Message& here = *within.back();
    switch (step.kind) {
      case ParsingStep::Kind::kMerge:
        if (!MergeRange(step.range, input, here)) return MalformedMessage();
        break;
      case ParsingStep::Kind::kEnter:
        within.push_back(here.GetReflection()->MutableMessage(&here, step.field));
        break;
      case ParsingStep::Kind::kLeave: within.pop_back(); break;
      case ParsingStep::Kind::kHold:
        here.GetReflection()->SetString(&here, step.field, std::string());
        break;
    }
  }
  return absl::OkStatus();
}

ReceivedSlices Incoming::SlicesOf(WireRange range) const {
  ReceivedSlices slices;
  int64_t begin = 0;
  for (const grpc::Slice& slice : slices_) {
    const int64_t end = begin + static_cast<int64_t>(slice.size());
    const int64_t first = std::max(range.begin, begin);
    const int64_t last = std::min(range.end, end);
    if (first < last) {
      slices.push_back(
          slice.sub(static_cast<size_t>(first - begin), static_cast<size_t>(last - begin)));
    }
    begin = end;
  }
  return slices;
}

}  // namespace gemmd
