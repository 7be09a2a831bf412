// SPDX-License-Identifier: Apache-2.0
//
// What a peer sends, from gRPC's slices to a parsed message. Long fields stay in their slices, and
// all of it is counted before memory is taken for it.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/job.h"
#include "server/system/mutex.h"

namespace gemmd {

// The slices that a message was received in.
//
// Their memory is in gRPC's quota, and where that is short, gRPC has something to run as soon as
// some is free again. gRPC 1.51 runs it on the thread that frees a slice, and the process ends
// there unless the thread is within a call of gRPC's: grpc_slice_unref is none. The end of a byte
// buffer is one, so slices are freed by that.
//
// To free 256 MiB takes 20 ms and more, most of it for pages that go back to the system. A handler
// that drops a long message must not hold its thread for that: what a list still has when it goes
// is freed on gRPC's other threads, a millisecond at a time.
//
// Short messages come in one, for which no list is allocated.
using SliceList = absl::InlinedVector<grpc::Slice, 1>;

// Threads: one at a time, whichever.
class ReceivedSlices : public SliceList {
 public:
  ReceivedSlices() = default;
  ReceivedSlices(std::vector<grpc::Slice> slices)
      : SliceList(std::make_move_iterator(slices.begin()), std::make_move_iterator(slices.end())) {}
  ReceivedSlices(const ReceivedSlices&) = default;
  ReceivedSlices(ReceivedSlices&&) noexcept = default;
  ReceivedSlices& operator=(ReceivedSlices other) noexcept {
    swap(other);
    std::swap(is_kept_elsewhere_, other.is_kept_elsewhere_);
    return *this;
  }
  ~ReceivedSlices() { Drop(); }

  // An empty list, for parts of slices that another list keeps for longer: nothing is freed with
  // them.
  static ReceivedSlices OfKept() {
    ReceivedSlices parts;
    parts.is_kept_elsewhere_ = true;
    return parts;
  }

  // Frees `count` slices from `first` on, which are empty then.
  void LetGo(size_t first, size_t count);
  // Those before `begin` are not in the list any more.
  void EraseBefore(size_t begin);
  void clear() { *this = ReceivedSlices(); }

 private:
  void Drop() noexcept;

  bool is_kept_elsewhere_ = false;
};

// The memory that gRPC may take for what arrives. Where it has too much, it reads less and then
// ends calls.
//
// Bytes of a message that stay where they arrived until their product is done are in the account of
// admission from then on. gRPC counts them all the same, so its quota grows by them meanwhile.
class ReceiveQuota {
 public:
  explicit ReceiveQuota(int64_t bytes);

  const grpc::ResourceQuota& of_grpc() const { return quota_; }

  // So many more bytes stay, or fewer where it is negative. Threads: any.
  void Stay(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_);
  grpc::ResourceQuota quota_;  // Resized under the lock.
};

// The long fields of a message, whose bytes stay where gRPC received them: in slices, of which the
// message that is made of the rest knows nothing.
//
// The bytes of one field.
class HeldField final : public PieceKeeper {
 public:
  // Bytes that are in gRPC's quota: borrows it. No slice is empty.
  HeldField(ReceivedSlices slices, ReceiveQuota& quota);
  ~HeldField() override { quota_.Stay(-bytes_left_); }
  HeldField(const HeldField&) = delete;
  HeldField& operator=(const HeldField&) = delete;

  const PieceList& pieces() const { return pieces_; }
  int64_t bytes() const { return bytes_; }

  void LetGo(size_t first, size_t count) override;

 private:
  ReceivedSlices slices_;
  PieceList pieces_;  // One for each slice.
  int64_t bytes_ = 0;
  std::atomic<int64_t> bytes_left_ = 0;
  ReceiveQuota& quota_;
};

// The fields of one message, some of which are held.
class HeldFields {
 public:
  // What is held of a field of bytes; null where the message itself has them.
  HeldField* Find(const google::protobuf::Message& message, int number) const;

  // `message` is where it is when the whole message is used.
  void Add(const google::protobuf::Message& message, int number, std::unique_ptr<HeldField> field);

  bool empty() const { return fields_.empty(); }

 private:
  struct Entry {
    const google::protobuf::Message* message;
    int number;
    std::unique_ptr<HeldField> field;
  };
  std::vector<Entry> fields_;
};

// The slices of a message as protobuf reads them.
//
// Reads slices in their order; where asked to, frees them, some at a time, once the reader has come
// past them.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  enum class After { kKeep, kFree };
  SliceStream(ReceivedSlices& slices, After after) : slices_(slices), after_(after) {}

  bool Next(const void** data, int* size) override {
    if (unread_ == 0) {
      const bool is_end = next_ == slices_.size();
      if (after_ == After::kFree && (is_end || next_ - freed_ >= kFreedTogether)) {
        slices_.LetGo(freed_, next_ - freed_);
        freed_ = next_;
      }
      if (is_end) return false;
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
  static constexpr size_t kFreedTogether = 64;

  ReceivedSlices& slices_;
  const After after_;
  size_t freed_ = 0;   // The slice after those that are freed.
  size_t next_ = 0;    // The slice after the one that is read.
  size_t unread_ = 0;  // The last bytes of the slice that is read.
  int64_t position_ = 0;
};

// A look through the bytes of a message before anything is made of them: whether they are one, what
// they will take, and which of its fields are better left where they are.
//
// A field of bytes at least as long stays in its slices; a shorter one is sooner copied.
inline constexpr int64_t kHeldFromBytes = int64_t{32} << 10;

// But not one whose slices are shorter than this on average: the memory that each is a part of, and
// what names it, would take more than its bytes.
inline constexpr int64_t kMinSliceBytes = int64_t{4} << 10;

// What a message has of fields, those of messages within it included, and what one of text may have
// of bytes: a few dozen, and 128 bytes, are of use. To go through ten million empty fields, which
// 20 MB hold, takes seconds.
inline constexpr int64_t kMaxFields = 1024;
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 20;

// A range of the message's bytes.
struct WireRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// What is done with the message's bytes, one step after the other, to make the message of them.
struct ParsingStep {
  enum class Kind : uint8_t {
    kMerge,  // The bytes are whole fields of the message at hand.
    kEnter,  // The message at hand is a field of it from now on.
    kLeave,  // It is the one around it again.
    kHold,   // The field is there, but empty: its bytes stay.
  };
  Kind kind;
  const google::protobuf::FieldDescriptor* field = nullptr;
  WireRange range = {};  // Where the step is kMerge.
};

// A field whose bytes stay: of all its occurrences the last one, which counts.
struct FieldToHold {
  const google::protobuf::Message* message;
  const google::protobuf::FieldDescriptor* field;
  WireRange range;
};

// What most messages have of both fits in without an allocation.
using ParsingSteps = absl::InlinedVector<ParsingStep, 8>;
using FieldsToHold = absl::InlinedVector<FieldToHold, 3>;

class Examination {
 public:
  // Borrows both. `input` reads the slices.
  Examination(google::protobuf::io::CodedInputStream& input, const SliceList& slices)
      : input_(input), slices_(slices) {}

  // Goes through the fields up to the input's limit, and makes room in the message for long fields
  // of bytes that do not stay. Errors: InvalidArgument.
  absl::Status Run(google::protobuf::Message& message);

  int64_t unknown_bytes() const { return unknown_bytes_; }
  int64_t repeated_bytes() const { return repeated_bytes_; }
  const ParsingSteps& steps() const { return steps_; }
  const FieldsToHold& held() const { return held_; }

 private:
  using Message = google::protobuf::Message;
  using Field = google::protobuf::FieldDescriptor;
  enum class Holding { kAllowed, kForbidden };

  // Whether so many bytes can neither have a field that stays nor replace one that does: they are
  // looked through without the message that they will be, which is then null below.
  bool IsShort(int bytes) const { return bytes >= 0 && bytes < kHeldFromBytes && held_.empty(); }
  absl::Status Fields(const google::protobuf::Descriptor& type, Message* message, Holding holding);
  absl::Status Unknown(uint32_t tag, int start);
  absl::Status Known(const Field& field, uint32_t tag, int start, Message* message,
                     Holding holding);
  absl::Status Delimited(const Field& field, int start, Message* message, Holding holding);
  absl::Status Within(const Field& field, int start, int bytes, Message& message, Holding holding);
  absl::Status Whole(const Field& field, int bytes);
  absl::Status Bytes(const Field& field, int start, int bytes, Message& message, Holding holding);
  bool IsInFewSlices(WireRange range);
  void Forget(const Message& message, const Field& field);
  void MergeUntil(int64_t end);

  google::protobuf::io::CodedInputStream& input_;
  const SliceList& slices_;
  size_t slice_ = 0;         // The one that was reached,
  int64_t slice_begin_ = 0;  // and where it begins.
  int64_t fields_ = 0;
  int64_t unknown_bytes_ = 0;
  int64_t repeated_bytes_ = 0;
  int64_t merged_ = 0;  // What is before it is in the steps.
  ParsingSteps steps_;
  FieldsToHold held_;
};

absl::Status MalformedMessage();
absl::Status TooManyFields();

// A message between its arrival and its being parsed. What a peer sends is looked through before
// anything is made of it, because a parsed message may be many times as large as its bytes: 16 MiB
// of unknown groups become 400 MB.
//
// Bytes of fields that the wire contract does not have, in one message: newer clients may send a
// few. They are never kept.
inline constexpr int64_t kMaxUnknownBytes = 1024;

// All that the buffer holds, as it stays.
ReceivedSlices SlicesIn(const grpc::ByteBuffer& buffer);

// All that the buffer holds, which is empty then. Nothing where there is no memory for the list.
ReceivedSlices TakeSlices(grpc::ByteBuffer& buffer);

// The refusal of a message of so many bytes.
absl::Status NoMemory(int64_t bytes);

class Incoming {
 public:
  // Takes the bytes out of `buffer`.
  explicit Incoming(grpc::ByteBuffer& buffer);
  // All of its bytes.
  explicit Incoming(ReceivedSlices slices);

  int64_t wire_bytes() const { return wire_bytes_; }

  // The most bytes that Parse takes at any time beside an empty message, wire bytes included.
  // Makes room in `message` for each long field, so that parsing moves none of them.
  // Errors: InvalidArgument where the bytes are no message of this type, have more than
  // kMaxUnknownBytes that are unknown, or more than kMaxFields; ResourceExhausted where there is
  // no memory.
  absl::StatusOr<int64_t> Examine(google::protobuf::Message& message);

  // The beginning of a field of text, before the message is parsed: of its last occurrence
  // among the first kMaxFields and before anything that is malformed.
  std::string ShortText(int number, size_t max_bytes);

  // Parses into the message that was examined, which stays where it is. The wire's bytes are freed
  // as they are parsed, except those of long fields (kHeldFromBytes), which the message gets
  // without their bytes: they are not copied, but stay with `held`. Borrows the quota for `held`.
  // Errors: as Examine.
  absl::Status Parse(google::protobuf::Message& message, ReceiveQuota& quota, HeldFields& held);

 private:
  absl::Status Take(google::protobuf::Message& message);
  ReceivedSlices SlicesOf(WireRange range) const;

  int64_t wire_bytes_ = 0;
  ReceivedSlices slices_;
  // What the examination found.
  bool has_unknown_fields_ = false;
  ParsingSteps steps_;
  FieldsToHold to_hold_;
};

// A MultiplyStreamRequest that has arrived, cut into its products before any of them is parsed:
// each is admitted and refused by itself.
//
// What one message may hold. More would save nothing, and nobody reads its bytes for long.
inline constexpr size_t kMaxJointRequests = 256;
inline constexpr int64_t kMaxJointBytes = int64_t{4} << 20;  // Where there are several.

class JointRequest {
 public:
  // Takes the bytes out of `buffer`.
  explicit JointRequest(grpc::ByteBuffer& buffer);

  // Finds the products. Once, before anything else. Errors: InvalidArgument where the bytes are no
  // such message, or it is against its bounds.
  absl::Status Cut();

  // Products that were not taken.
  size_t size() const { return products_.size() - taken_; }

  // The next product. One of several has to be gone before the next one is taken, and before this
  // is. Memory that only those before it were in is freed.
  // Errors: ResourceExhausted where there is none for the list of its slices; it is then left out.
  absl::StatusOr<Incoming> Take();

 private:
  ReceivedSlices SlicesOf(WireRange range);

  int64_t wire_bytes_ = 0;
  ReceivedSlices slices_;
  std::vector<WireRange> products_;
  size_t taken_ = 0;
  size_t slice_ = 0;         // The one that the next product begins in, or one before,
  int64_t slice_begin_ = 0;  // and where that begins.
  size_t freed_ = 0;         // What comes before it is freed.
};

// Reads a request that brings no operands: bounded, and without fields that are not known.
//
// What it has at most: its longest text is a product without operands.
inline constexpr size_t kMaxRequestBytes = size_t{1} << 20;

// Takes the bytes out of the request that gRPC gives to a method, where they would stay for as long
// as the call does: who does not read the answer, or keeps a stream open, would keep them.
grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request);

// Errors: ResourceExhausted, as gRPC has it, for too many bytes, or no memory to parse them in;
// InvalidArgument for bytes that are no such message, or have more unknown fields than Incoming
// allows.
absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& request,
                         size_t max_bytes = kMaxRequestBytes);

}  // namespace gemmd
