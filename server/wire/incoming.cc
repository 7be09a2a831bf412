// SPDX-License-Identifier: Apache-2.0
#include "server/wire/incoming.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A field of bytes at least as long gets its room before it is parsed: protobuf lets longer ones
// (50 MB and more) grow by doubling, which takes up to three times their size.
constexpr uint32_t kRoomMadeFromBytes = 1 << 20;

// While the values of a repeated field arrive, there may be an old array and a new one twice as
// long.
constexpr int64_t kRepeatedGrowth = 2;

// Reads slices in their order; where asked to, frees each once the reader has come past it.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  enum class After { kKeep, kFree };
  SliceStream(std::vector<grpc::Slice>& slices, After after) : slices_(slices), after_(after) {}

  bool Next(const void** data, int* size) override {
    if (unread_ == 0) {
      if (after_ == After::kFree && next_ > 0) slices_[next_ - 1] = grpc::Slice();
      if (next_ == slices_.size()) return false;
      unread_ = slices_[next_++].size();
    }
    const grpc::Slice& slice = slices_[next_ - 1];
    *data = slice.end() - unread_;
    *size = static_cast<int>(unread_);
    position_ += *size;
    unread_ = 0;
    return true;
  }
  void BackUp(int count) override {
    unread_ = static_cast<size_t>(count);
    position_ -= count;
  }
  bool Skip(int count) override {
    const void* data = nullptr;
    int size = 0;
    while (count > 0 && Next(&data, &size)) {
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return count == 0;
  }
  int64_t ByteCount() const override { return position_; }

 private:
  std::vector<grpc::Slice>& slices_;
  const After after_;
  size_t next_ = 0;    // The slice after the one that is read.
  size_t unread_ = 0;  // The last bytes of the slice that is read.
  int64_t position_ = 0;
};

absl::Status Malformed() {
  return absl::InvalidArgumentError("message: got bytes that are no message of this method");
}

// Goes through the fields of a message on the wire without making anything of them.
class Examination {
 public:
  explicit Examination(CodedInputStream& input) : input_(input) {}

  // The fields up to the input's limit.
  absl::Status Fields(Message& message) {
    int start = input_.CurrentPosition();
    while (const uint32_t tag = input_.ReadTag()) {
      const FieldDescriptor* const field =
          message.GetDescriptor()->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      const bool is_known = field != nullptr && IsTypeOf(*field, tag);
      RETURN_IF_ERROR(is_known ? Known(*field, tag, message) : Unknown(tag, start));
      start = input_.CurrentPosition();
    }
    // ReadTag gives 0 at the end, and for what cannot be a tag.
    return input_.ConsumedEntireMessage() ? absl::OkStatus() : Malformed();
  }

  int64_t unknown_bytes() const { return unknown_bytes_; }
  int64_t repeated_bytes() const { return repeated_bytes_; }

 private:
  static bool IsTypeOf(const FieldDescriptor& field, uint32_t tag) {
    const WireFormatLite::WireType type = WireFormatLite::GetTagWireType(tag);
    if (field.is_packable() && type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) return true;
    return type == WireFormatLite::WireTypeForFieldType(
                       static_cast<WireFormatLite::FieldType>(field.type()));
  }

  // `start` is where the field's tag begins.
  absl::Status Unknown(uint32_t tag, int start) {
    if (!WireFormatLite::SkipField(&input_, tag)) return Malformed();
    unknown_bytes_ += input_.CurrentPosition() - start;
    if (unknown_bytes_ <= kMaxUnknownBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(Concat("message: got at least ", unknown_bytes_,
                                             " bytes of unknown fields, want at most ",
                                             kMaxUnknownBytes));
  }

  absl::Status Known(const FieldDescriptor& field, uint32_t tag, Message& message) {
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      return Delimited(field, message);
    }
    const int before = input_.CurrentPosition();
    if (!WireFormatLite::SkipField(&input_, tag)) return Malformed();
    if (field.is_repeated()) repeated_bytes_ += input_.CurrentPosition() - before;
    return absl::OkStatus();
  }

  absl::Status Delimited(const FieldDescriptor& field, Message& message) {
    uint32_t bytes = 0;
    if (!input_.ReadVarint32(&bytes)) return Malformed();
    // Everything is inside of what came, or it is malformed: no room is made for what is not here.
    const int left = input_.BytesUntilLimit();
    if (left >= 0 && bytes > static_cast<uint32_t>(left)) return Malformed();
    if (field.is_repeated()) repeated_bytes_ += bytes;
    const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_message && !field.is_repeated()) {
      const CodedInputStream::Limit limit = input_.PushLimit(static_cast<int>(bytes));
      RETURN_IF_ERROR(Fields(*message.GetReflection()->MutableMessage(&message, &field)));
      input_.PopLimit(limit);
      return absl::OkStatus();
    }
    if (!input_.Skip(static_cast<int>(bytes))) return Malformed();
    if (field.type() == FieldDescriptor::TYPE_BYTES && !field.is_repeated() &&
        bytes >= kRoomMadeFromBytes) {
      std::string room;
      room.reserve(bytes);
      message.GetReflection()->SetString(&message, &field, std::move(room));
    }
    return absl::OkStatus();
  }

  CodedInputStream& input_;
  int64_t unknown_bytes_ = 0;
  int64_t repeated_bytes_ = 0;
};

absl::Status NoMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(
      Concat("message: no memory to parse ", bytes, " bytes in, try again later"));
}

}  // namespace

Incoming::Incoming(grpc::ByteBuffer& buffer) : wire_bytes_(static_cast<int64_t>(buffer.Length())) {
  (void)buffer.Dump(&slices_);  // Fails for compressed messages alone, which are not taken.
  buffer.Clear();
}

absl::StatusOr<int64_t> Incoming::Examine(Message& message) {
  try {
    SliceStream stream(slices_, SliceStream::After::kKeep);
    CodedInputStream input(&stream);
    const CodedInputStream::Limit whole = input.PushLimit(static_cast<int>(wire_bytes_));
    Examination examination(input);
    RETURN_IF_ERROR(examination.Fields(message));
    input.PopLimit(whole);
    has_unknown_fields_ = examination.unknown_bytes() > 0;
    return wire_bytes_ + kRepeatedGrowth * examination.repeated_bytes();
  } catch (const std::bad_alloc&) {
    return NoMemory(wire_bytes_);
  }
}

absl::Status Incoming::Parse(Message& message) {
  try {
    SliceStream stream(slices_, SliceStream::After::kFree);
    // To merge keeps the room that was made, and the message is otherwise empty.
    if (!message.MergeFromBoundedZeroCopyStream(&stream, static_cast<int>(wire_bytes_))) {
      return Malformed();
    }
    slices_.clear();
    if (has_unknown_fields_) message.DiscardUnknownFields();
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return NoMemory(wire_bytes_);
  }
}

}  // namespace gemmd
