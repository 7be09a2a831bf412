// SPDX-License-Identifier: Apache-2.0
#include "server/wire/incoming.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "proto/field_start.h"
#include "server/system/clock.h"

namespace gemmd {

namespace {

// A byte buffer of gRPC 1.51 has room for this many slices without an allocation.
constexpr size_t kMaxAtOnce = 8;

// About 2 MiB, which takes less than a millisecond to free.
constexpr size_t kMaxInPlace = 256;
constexpr int64_t kMaxNs = 1'000'000;

void Free(SliceList& slices, size_t first, size_t count) {
  for (const size_t end = first + count; first < end; first += kMaxAtOnce) {
    const size_t next = std::min(first + kMaxAtOnce, end);
    const grpc::ByteBuffer last(slices.data() + first, next - first);
    std::fill(slices.begin() + static_cast<ptrdiff_t>(first),
              slices.begin() + static_cast<ptrdiff_t>(next), grpc::Slice());
  }
}

// Frees slices on gRPC's threads, and then deletes itself. Between two batches, other work that
// waits for such a thread may run.
class Disposal {
 public:
  void Begin(SliceList& slices) {
    slices_.swap(slices);
    FreeLater();
  }

 private:
  void FreeLater() {
    alarm_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [this](bool /*ok*/) { FreeSome(); });
  }
  void FreeSome() {
    const SteadyClock clock;
    const int64_t until_ns = clock.NowNs() + kMaxNs;
    while (next_ < slices_.size() && clock.NowNs() < until_ns) {
      const size_t count = std::min(kMaxAtOnce, slices_.size() - next_);
      Free(slices_, next_, count);
      next_ += count;
    }
    if (next_ < slices_.size()) return FreeLater();
    delete this;
  }

  grpc::Alarm alarm_;
  SliceList slices_;
  size_t next_ = 0;
};

}  // namespace

void ReceivedSlices::Release(size_t first, size_t count) {
  if (!is_kept_elsewhere_) return Free(*this, first, count);
  std::fill_n(begin() + static_cast<ptrdiff_t>(first), count, grpc::Slice());
}

void ReceivedSlices::EraseBefore(size_t begin) {
  Release(0, begin);
  erase(this->begin(), this->begin() + static_cast<ptrdiff_t>(begin));
}

void ReceivedSlices::Drop() noexcept {
  if (is_kept_elsewhere_) return;
  const auto is_empty = [](const grpc::Slice& slice) { return slice.size() == 0; };
  erase(std::remove_if(begin(), end(), is_empty), end());
  if (size() > kMaxInPlace) {
    try {
      auto disposal = std::make_unique<Disposal>();
      disposal.release()->Begin(*this);
    } catch (const std::bad_alloc&) {  // Then the caller's thread has to free the slices.
    }
  }
  Release(0, size());
}

ReceiveQuota::ReceiveQuota(int64_t bytes) : bytes_(bytes), quota_("gemmd") {
  quota_.Resize(static_cast<size_t>(bytes));
}

void ReceiveQuota::Stay(int64_t bytes) {
  MutexLock lock(&mutex_);
  bytes_ += bytes;
  quota_.Resize(static_cast<size_t>(bytes_));
}

HeldField::HeldField(ReceivedSlices slices, ReceiveQuota& quota)
    : slices_(std::move(slices)), quota_(quota) {
  pieces_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    // A short slice stores its bytes inside itself, so its address is taken where it stays.
    pieces_.push_back({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
    bytes_ += static_cast<int64_t>(slice.size());
  }
  bytes_left_ = bytes_;
  quota_.Stay(bytes_);
}

void HeldField::Release(size_t first, size_t count) {
  int64_t bytes = 0;
  for (size_t i = first; i < first + count; ++i) {
    bytes += static_cast<int64_t>(pieces_[i].size());
  }
  slices_.Release(first, count);
  bytes_left_ -= bytes;
  quota_.Stay(-bytes);
}

HeldField* HeldFields::Find(const google::protobuf::Message& message, int number) const {
  for (const Entry& entry : fields_) {
    if (entry.message == &message && entry.number == number) return entry.field.get();
  }
  return nullptr;
}

void HeldFields::Add(const google::protobuf::Message& message, int number,
                     std::unique_ptr<HeldField> field) {
  fields_.push_back({&message, number, std::move(field)});
}

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A field of at least this many bytes gets its capacity before it is parsed: protobuf grows long
// ones (50 MB and more) by doubling, which takes up to three times their size.
constexpr int kRoomMadeFromBytes = 1 << 20;

// Scale factors get their capacity, too. Otherwise a million of them would be copied each time that
// the array doubles, which takes milliseconds.
void MakeRoomForFactors(int bytes, Message& message) {
  if (message.GetDescriptor() != v1::Scale::descriptor()) return;
  auto& scale = static_cast<v1::Scale&>(message);
  const int more = bytes / static_cast<int>(sizeof(float));
  scale.mutable_values()->Reserve(scale.values_size() + more);
}

bool IsTypeOf(const FieldDescriptor& field, uint32_t tag) {
  const WireFormatLite::WireType type = WireFormatLite::GetTagWireType(tag);
  if (field.is_packable() && type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) return true;
  return type ==
         WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
}

}  // namespace

bool ReadRange(CodedInputStream& input, WireRange& range) {
  uint32_t bytes = 0;
  if (!input.ReadVarint32(&bytes)) return false;
  const int left = input.BytesUntilLimit();
  if (left < 0 || bytes > static_cast<uint32_t>(left)) return false;
  range.begin = input.CurrentPosition();
  range.end = range.begin + bytes;
  return true;
}

absl::Status MalformedMessage() {
  return absl::InvalidArgumentError("message: got bytes that are not a message of this method");
}

absl::Status TooManyFields() {
  return Invalid("message", Concat("more than ", kMaxFields, " fields"),
                 Concat("at most ", kMaxFields));
}

absl::Status Examination::Run(Message& message) {
  Message* const used = IsShort(input_.BytesUntilLimit()) ? nullptr : &message;
  RETURN_IF_ERROR(Fields(*message.GetDescriptor(), used, Holding::kAllowed));
  MergeUntil(input_.CurrentPosition());
  return absl::OkStatus();
}

absl::Status Examination::Fields(const google::protobuf::Descriptor& type, Message* message,
                                 Holding holding) {
  int start = input_.CurrentPosition();
  while (const uint32_t tag = input_.ReadTag()) {
    if (++fields_ > kMaxFields) return TooManyFields();
    const FieldDescriptor* const field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool is_known = field != nullptr && IsTypeOf(*field, tag);
    RETURN_IF_ERROR(is_known ? Known(*field, tag, start, message, holding) : Unknown(tag, start));
    start = input_.CurrentPosition();
  }
  // ReadTag returns 0 at the end, and also for bytes that cannot be a tag.
  return input_.ConsumedEntireMessage() ? absl::OkStatus() : MalformedMessage();
}

// `start` is where the field's tag begins.
absl::Status Examination::Unknown(uint32_t tag, int start) {
  if (!WireFormatLite::SkipField(&input_, tag)) return MalformedMessage();
  unknown_bytes_ += input_.CurrentPosition() - start;
  if (unknown_bytes_ <= kMaxUnknownBytes) return absl::OkStatus();
  return Invalid("message", Concat("at least ", unknown_bytes_, " bytes of unknown fields"),
                 Concat("at most ", kMaxUnknownBytes));
}

absl::Status Examination::Known(const Field& field, uint32_t tag, int start, Message* message,
                                Holding holding) {
  if (message != nullptr) Forget(*message, field);
  if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
    return Delimited(field, start, message, holding);
  }
  const int before = input_.CurrentPosition();
  if (!WireFormatLite::SkipField(&input_, tag)) return MalformedMessage();
  if (field.is_repeated()) repeated_bytes_ += input_.CurrentPosition() - before;
  return absl::OkStatus();
}

absl::Status Examination::Delimited(const Field& field, int start, Message* message,
                                    Holding holding) {
  uint32_t bytes = 0;
  if (!input_.ReadVarint32(&bytes)) return MalformedMessage();
  // A length beyond the bytes received is malformed: no memory is reserved for bytes that are not
  // there.
  const int left = input_.BytesUntilLimit();
  if (left >= 0 && bytes > static_cast<uint32_t>(left)) return MalformedMessage();
  const int size = static_cast<int>(bytes);
  if (field.is_repeated()) {
    repeated_bytes_ += size;
    // Nothing of one of several messages, or of an entry of a map, stays in its slices.
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return Whole(field, size);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT && message != nullptr) {
      MakeRoomForFactors(size, *message);
    }
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    if (message == nullptr || IsShort(size)) return Whole(field, size);
    return Within(field, start, size, *message, holding);
  } else if (field.type() == FieldDescriptor::TYPE_BYTES && message != nullptr) {
    return Bytes(field, start, size, *message, holding);
  } else if (field.type() == FieldDescriptor::TYPE_STRING && size > kMaxTextBytes) {
    return Invalid(field.name(), Concat(size, " bytes"), Concat("at most ", kMaxTextBytes));
  }
  return input_.Skip(size) ? absl::OkStatus() : MalformedMessage();
}

absl::Status Examination::Within(const Field& field, int start, int bytes, Message& message,
                                 Holding holding) {
  // While the rest is parsed, a message of a oneof may be replaced by another one.
  if (field.real_containing_oneof() != nullptr) holding = Holding::kForbidden;
  const int64_t merged_before = merged_;
  const size_t steps_before = steps_.size();
  const CodedInputStream::Limit limit = input_.PushLimit(bytes);
  MergeUntil(start);
  steps_.push_back({.kind = ParsingStep::Kind::kEnter, .field = &field});
  merged_ = input_.CurrentPosition();
  const size_t entered = steps_.size();
  Message* const inner = message.GetReflection()->MutableMessage(&message, &field);
  RETURN_IF_ERROR(Fields(*field.message_type(), inner, holding));
  input_.PopLimit(limit);
  if (steps_.size() == entered) {
    // No field in it stays in its slices: protobuf parses it as one field, like any other.
    steps_.erase(steps_.begin() + static_cast<ptrdiff_t>(steps_before), steps_.end());
    merged_ = merged_before;
    return absl::OkStatus();
  }
  MergeUntil(input_.CurrentPosition());
  steps_.push_back({.kind = ParsingStep::Kind::kLeave});
  return absl::OkStatus();
}

// A message that is parsed as one field, like any other.
absl::Status Examination::Whole(const Field& field, int bytes) {
  const CodedInputStream::Limit limit = input_.PushLimit(bytes);
  RETURN_IF_ERROR(Fields(*field.message_type(), nullptr, Holding::kForbidden));
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
  walk_.Visit(slices_, range, [&count](const grpc::Slice&, size_t, size_t) { ++count; });
  return (range.end - range.begin) / kMinSliceBytes >= count;
}

// Another occurrence of the field, or of another one in its oneof, replaces the earlier ones.
void Examination::Forget(const Message& message, const Field& field) {
  const auto is_replaced = [&](const FieldToHold& held) {
    if (held.message != &message) return false;
    return held.field == &field || (field.real_containing_oneof() != nullptr &&
                                    held.field->containing_oneof() == field.containing_oneof());
  };
  held_.erase(std::remove_if(held_.begin(), held_.end(), is_replaced), held_.end());
}

void Examination::MergeUntil(int64_t end) {
  if (end > merged_) steps_.push_back({.kind = ParsingStep::Kind::kMerge, .range = {merged_, end}});
  merged_ = end;
}

namespace {

using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// While the values of a repeated field arrive, an old array and a new one twice as long may exist.
constexpr int64_t kRepeatedGrowth = 2;

int64_t SizeOf(WireRange range) { return range.end - range.begin; }

// The bytes that protobuf parses when other fields are held. Until they are parsed, the slices that
// contain both stay, too.
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
  (void)buffer.Dump(&several);  // Fails only for compressed messages, which are not accepted.
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

std::string Incoming::ShortText(int number, size_t max_bytes) {
  std::string text;
  SliceStream stream(slices_, SliceStream::After::kKeep);
  CodedInputStream input(&stream);
  const CodedInputStream::Limit whole = input.PushLimit(static_cast<int>(wire_bytes_));
  for (int64_t fields = 0; fields < kMaxFields; ++fields) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) break;
    uint32_t bytes = 0;
    if (tag != DelimitedTag(number)) {
      if (!WireFormatLite::SkipField(&input, tag)) break;
    } else if (input.ReadVarint32(&bytes) &&
               bytes <= static_cast<uint32_t>(input.BytesUntilLimit())) {
      const int read = static_cast<int>(std::min<size_t>(bytes, max_bytes));
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
      ReceivedSlices slices;
      SliceWalk().Cut(slices_, field.range, slices);
      held.Add(*field.message, field.field->number(),
               std::make_unique<HeldField>(std::move(slices), quota));
    }
    RETURN_IF_ERROR(Take(message));
    slices_.clear();
    if (has_unknown_fields_) message.DiscardUnknownFields();
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return NoMemory(wire_bytes_);
  }
}

// Merging keeps the capacity that was reserved; the message is otherwise empty.
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

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

const uint32_t kProductTag = DelimitedTag(v1::MultiplyStreamRequest::kRequestsFieldNumber);

}  // namespace

JointRequest::JointRequest(grpc::ByteBuffer& buffer)
    : wire_bytes_(static_cast<int64_t>(buffer.Length())), slices_(TakeSlices(buffer)) {}

absl::Status JointRequest::Cut() {
  if (slices_.empty() && wire_bytes_ > 0) return NoMemory(wire_bytes_);
  SliceStream stream(slices_, SliceStream::After::kKeep);
  CodedInputStream input(&stream);
  (void)input.PushLimit(static_cast<int>(wire_bytes_));
  int64_t product_bytes = 0;
  while (const uint32_t tag = NextTag(input)) {
    if (tag != kProductTag) {
      if (!WireFormatLite::SkipField(&input, tag)) return MalformedMessage();
      const int64_t unknown_bytes = input.CurrentPosition() - product_bytes;
      if (unknown_bytes <= kMaxUnknownBytes) continue;
      return Invalid("message", Concat("at least ", unknown_bytes, " bytes of unknown fields"),
                     Concat("at most ", kMaxUnknownBytes));
    }
    WireRange range;
    if (!ReadRange(input, range) || !input.Skip(static_cast<int>(SizeOf(range)))) {
      return MalformedMessage();
    }
    if (products_.size() == kMaxJointRequests) {
      return Invalid("requests", "more", Concat("at most ", kMaxJointRequests, " in one message"));
    }
    if (products_.size() == 1) products_.reserve(kMaxJointRequests);
    products_.push_back(range);
    product_bytes += static_cast<int64_t>(EncodedFieldBytes(1, static_cast<size_t>(SizeOf(range))));
  }
  // NextTag returns 0 at the end, and also for bytes that cannot be a tag.
  if (!input.ConsumedEntireMessage()) return MalformedMessage();
  if (products_.size() > 1 && wire_bytes_ > kMaxJointBytes) {
    return Invalid("requests", Concat(products_.size(), " in ", wire_bytes_, " bytes"),
                   Concat("a single one, or at most ", kMaxJointBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Incoming> JointRequest::Take() {
  const WireRange range = products_[taken_++];
  return OrNoMemory("message: no memory for its parts, try again later",
                    [&]() -> absl::StatusOr<Incoming> { return Incoming(SlicesOf(range)); });
}

ReceivedSlices JointRequest::SlicesOf(WireRange range) {
  slices_.Release(freed_, walk_.slice() - freed_);
  freed_ = walk_.slice();
  // Several products are short, and their bytes stay here until they are parsed. A single product
  // may be long, and its bytes are freed as it is parsed.
  const bool is_alone = products_.size() == 1;
  ReceivedSlices slices = is_alone ? ReceivedSlices() : ReceivedSlices::OfKept();
  walk_.Cut(slices_, range, slices);
  if (is_alone) slices_.Release(0, slices_.size());
  return slices;
}

grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request) {
  grpc::ByteBuffer taken;
  // gRPC made the buffer for this call, and only destroys it afterwards.
  const_cast<grpc::ByteBuffer&>(request).Swap(&taken);
  return taken;
}

absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& request,
                         int64_t max_bytes) {
  if (static_cast<int64_t>(bytes.Length()) > max_bytes) {
    return absl::ResourceExhaustedError(
        GotWant("request", Concat(bytes.Length(), " bytes"), Concat("at most ", max_bytes)));
  }
  grpc::ByteBuffer references(bytes);  // Refers to the same memory; the slices are taken out of
                                       // this copy.
  Incoming incoming(references);
  RETURN_IF_ERROR(incoming.Examine(request).status());
  request.Clear();
  grpc::ByteBuffer parsed(bytes);
  grpc::ProtoBufferReader reader(&parsed);
  // Only the parser notices text that is not UTF-8.
  if (!reader.status().ok() || !request.ParseFromZeroCopyStream(&reader)) return MalformedMessage();
  request.DiscardUnknownFields();
  return absl::OkStatus();
}

}  // namespace gemmd
