// SPDX-License-Identifier: Apache-2.0
//
// What a peer sends, from gRPC's slices to a parsed message. Long fields stay in their slices, and
// all memory is counted before it is taken.
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

// The slices in which a message was received.
//
// Their memory is in gRPC's quota, and when the quota is short, gRPC has work that waits for memory
// to be freed. gRPC 1.51 runs that work on the thread that frees a slice and aborts the process
// unless that thread is inside a call of gRPC's. grpc_slice_unref is not such a call, but the
// destructor of a byte buffer is, so slices are freed through a byte buffer.
//
// To free 256 MiB takes 20 ms and more, most of it for pages that return to the system. A handler
// that drops a long message must not block its thread for that long: the slices that a list still
// has when it is destroyed are freed on gRPC's other threads, a millisecond at a time.
//
// A short message comes in one slice, for which no list is allocated.
using SliceList = absl::InlinedVector<grpc::Slice, 1>;

// Movable. Threads: one at a time, not always the same one.
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

  // An empty list for parts of slices that another list keeps for longer, so it frees nothing.
  static ReceivedSlices OfKept() {
    ReceivedSlices parts;
    parts.is_kept_elsewhere_ = true;
    return parts;
  }

  // Frees `count` slices from `first` on and leaves them empty.
  void Release(size_t first, size_t count);
  // Removes the slices before `begin` from the list.
  void EraseBefore(size_t begin);
  void clear() { *this = ReceivedSlices(); }

 private:
  void Drop() noexcept;

  bool is_kept_elsewhere_ = false;
};

// The memory that gRPC may use for what it receives. Above the quota, gRPC reads less and then ends
// calls.
//
// Bytes of a message that stay in their slices until the product is done are counted by admission.
// gRPC still counts them too, so its quota is raised by their number until they are freed.
class ReceiveQuota {
 public:
  explicit ReceiveQuota(int64_t bytes);

  const grpc::ResourceQuota& of_grpc() const { return quota_; }

  // Counts `bytes` more that stay, or fewer if it is negative. Threads: any.
  void Stay(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_);
  grpc::ResourceQuota quota_;  // Resized under the lock.
};

// The long fields of a message, whose bytes stay in the slices in which gRPC received them. The
// message, made from the rest, does not contain them.
//
// The bytes of one field.
class HeldField final : public PieceKeeper {
 public:
  // The bytes are in gRPC's quota, which is borrowed. No slice is empty.
  HeldField(ReceivedSlices slices, ReceiveQuota& quota);
  ~HeldField() override { quota_.Stay(-bytes_left_); }
  HeldField(const HeldField&) = delete;
  HeldField& operator=(const HeldField&) = delete;

  const PieceList& pieces() const { return pieces_; }
  int64_t bytes() const { return bytes_; }

  void Release(size_t first, size_t count) override;

 private:
  ReceivedSlices slices_;
  PieceList pieces_;  // One per slice.
  int64_t bytes_ = 0;
  std::atomic<int64_t> bytes_left_ = 0;
  ReceiveQuota& quota_;
};

// The held fields of one message.
class HeldFields {
 public:
  // The held bytes of a field, or null if the message itself has them.
  HeldField* Find(const google::protobuf::Message& message, int number) const;

  // Called when `message` is where it will be used: fields are found by its address.
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
// Reads slices in order. On request it frees them in groups once the reader has passed them.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  enum class After { kKeep, kFree };
  SliceStream(ReceivedSlices& slices, After after) : slices_(slices), after_(after) {}

  bool Next(const void** data, int* size) override {
    if (unread_ == 0) {
      const bool is_end = next_ == slices_.size();
      if (after_ == After::kFree && (is_end || next_ - freed_ >= kFreedTogether)) {
        slices_.Release(freed_, next_ - freed_);
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
  size_t freed_ = 0;   // One past the last slice freed.
  size_t next_ = 0;    // One past the slice being read.
  size_t unread_ = 0;  // The bytes left in the slice being read.
  int64_t position_ = 0;
};

// A scan of a message's bytes before it is parsed: whether they are well-formed, how much memory
// the message will take, and which fields are better left in their slices.
//
// A field of at least this many bytes stays in its slices; a shorter one is cheaper to copy.
inline constexpr int64_t kHeldFromBytes = int64_t{32} << 10;

// A field whose slices are shorter than this on average is copied: the buffer behind each slice and
// the slice's own record would take more memory than the field.
inline constexpr int64_t kMinSliceBytes = int64_t{4} << 10;

// The maximum number of fields, including those of nested messages, and of bytes in a text field.
// Useful requests have a few dozen fields and texts of 128 bytes. Ten million empty fields, which
// fit into 20 MB, would take seconds to scan.
inline constexpr int64_t kMaxFields = 1024;
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 20;

// A range of the message's bytes.
struct WireRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Reads the length of a field, and returns the range of the bytes after it. Returns false if that
// exceeds the input's limit.
bool ReadRange(google::protobuf::io::CodedInputStream& input, WireRange& range);

// A walk through the slices of a message, for ranges in their order.
class SliceWalk {
 public:
  // Calls `see` with each slice that has bytes of the range, and with their begin and end in it.
  template <typename See>
  void Visit(const SliceList& slices, WireRange range, See see) {
    for (; slice_ < slices.size(); ++slice_) {
      const int64_t end = begin_ + static_cast<int64_t>(slices[slice_].size());
      const int64_t first = std::max(range.begin, begin_);
      const int64_t last = std::min(range.end, end);
      if (first < last) {
        see(slices[slice_], static_cast<size_t>(first - begin_),
            static_cast<size_t>(last - begin_));
      }
      if (end >= range.end) return;  // The next range may begin in this slice.
      begin_ = end;
    }
  }

  // Appends the parts of the slices in the range.
  void Cut(const SliceList& slices, WireRange range, ReceivedSlices& to) {
    Visit(slices, range, [&to](const grpc::Slice& slice, size_t first, size_t last) {
      to.push_back(slice.sub(first, last));
    });
  }

  size_t slice() const { return slice_; }  // The slice in which the last range ended.

 private:
  size_t slice_ = 0;
  int64_t begin_ = 0;  // The position at which it begins.
};

// One step of parsing the message from its bytes.
struct ParsingStep {
  enum class Kind : uint8_t {
    kMerge,  // The bytes are whole fields of the current message.
    kEnter,  // A field of the current message becomes the current message.
    kLeave,  // The enclosing message becomes the current one again.
    kHold,   // The field is set but left empty: its bytes stay.
  };
  Kind kind;
  const google::protobuf::FieldDescriptor* field = nullptr;
  WireRange range = {};  // For kMerge.
};

// A field whose bytes stay. Of several occurrences, the last one counts.
struct FieldToHold {
  const google::protobuf::Message* message;
  const google::protobuf::FieldDescriptor* field;
  WireRange range;
};

// Most messages need no more, so neither list allocates.
using ParsingSteps = absl::InlinedVector<ParsingStep, 8>;
using FieldsToHold = absl::InlinedVector<FieldToHold, 3>;

class Examination {
 public:
  // Borrows both. `input` reads `slices`.
  Examination(google::protobuf::io::CodedInputStream& input, const SliceList& slices)
      : input_(input), slices_(slices) {}

  // Scans the fields up to the input's limit, and reserves room in the message for long fields of
  // bytes that do not stay. Errors: InvalidArgument.
  absl::Status Run(google::protobuf::Message& message);

  int64_t unknown_bytes() const { return unknown_bytes_; }
  int64_t repeated_bytes() const { return repeated_bytes_; }
  const ParsingSteps& steps() const { return steps_; }
  const FieldsToHold& held() const { return held_; }

 private:
  using Message = google::protobuf::Message;
  using Field = google::protobuf::FieldDescriptor;
  enum class Holding { kAllowed, kForbidden };

  // Whether `bytes` are too few to contain a field that stays, and none that stays can be replaced.
  // Such bytes are scanned without a message object; `message` below is then null.
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
  SliceWalk walk_;
  int64_t fields_ = 0;
  int64_t unknown_bytes_ = 0;
  int64_t repeated_bytes_ = 0;
  int64_t merged_ = 0;  // The steps cover the bytes before this position.
  ParsingSteps steps_;
  FieldsToHold held_;
};

absl::Status MalformedMessage();
absl::Status TooManyFields();

// A message between its arrival and its parsing. A message is scanned before it is parsed, because
// it may take many times as much memory as its bytes: 16 MiB of unknown groups become 400 MB.
//
// The maximum number of bytes of unknown fields in one message: newer clients may send a few. They
// are never kept.
inline constexpr int64_t kMaxUnknownBytes = 1024;

// All slices that the buffer holds; they stay in the buffer, too.
ReceivedSlices SlicesIn(const grpc::ByteBuffer& buffer);

// Takes all slices out of the buffer; nullopt if there is no memory for the list.
ReceivedSlices TakeSlices(grpc::ByteBuffer& buffer);

// The error for a message of `bytes` for which there is no memory.
absl::Status NoMemory(int64_t bytes);

class Incoming {
 public:
  // Takes the bytes out of `buffer`.
  explicit Incoming(grpc::ByteBuffer& buffer);
  // All bytes of the message.
  explicit Incoming(ReceivedSlices slices);

  int64_t wire_bytes() const { return wire_bytes_; }

  // The peak number of bytes that Parse needs beside an empty message, wire bytes included.
  // Reserves room in `message` for each long field, so that parsing never reallocates one. Errors:
  // InvalidArgument if the bytes are not a message of this type, or have more than kMaxUnknownBytes
  // of unknown fields or more than kMaxFields fields; ResourceExhausted if there is no memory.
  absl::StatusOr<int64_t> Examine(google::protobuf::Message& message);

  // The beginning of a text field, before the message is parsed: the last occurrence of the field
  // among the first kMaxFields fields and before anything malformed.
  std::string ShortText(int number, size_t max_bytes);

  // Parses into the message that was examined, which must not have moved. Frees the wire's bytes as
  // it parses them. Fields of at least kHeldFromBytes are not copied: the message gets them empty,
  // and `held` gets their bytes. Borrows the quota for `held`. Errors: as Examine.
  absl::Status Parse(google::protobuf::Message& message, ReceiveQuota& quota, HeldFields& held);

 private:
  absl::Status Take(google::protobuf::Message& message);

  int64_t wire_bytes_ = 0;
  ReceivedSlices slices_;
  // Results of Examine.
  bool has_unknown_fields_ = false;
  ParsingSteps steps_;
  FieldsToHold to_hold_;
};

// A MultiplyStreamRequest that has arrived, split into its products before any of them is parsed,
// so that each can be admitted or refused on its own.
//
// The limits of one message. Larger messages would save nothing, and while the server works through
// a message it reads no other from the stream.
inline constexpr size_t kMaxJointRequests = 256;
inline constexpr int64_t kMaxJointBytes = int64_t{4} << 20;  // If there are several products.

class JointRequest {
 public:
  // Takes the bytes out of `buffer`.
  explicit JointRequest(grpc::ByteBuffer& buffer);

  // Finds the products. Call it once, before anything else. Errors: InvalidArgument if the bytes
  // are not such a message, or exceed its limits.
  absl::Status Cut();

  // Products not taken yet.
  size_t size() const { return products_.size() - taken_; }

  // The next product. If there are several, each must be destroyed before the next one is taken and
  // before this object. Frees slices that only earlier products were in. Errors: ResourceExhausted
  // if there is no memory for the list of its slices; that product is then skipped.
  absl::StatusOr<Incoming> Take();

 private:
  ReceivedSlices SlicesOf(WireRange range);

  int64_t wire_bytes_ = 0;
  ReceivedSlices slices_;
  std::vector<WireRange> products_;
  size_t taken_ = 0;
  SliceWalk walk_;
  size_t freed_ = 0;  // Slices before this one are freed.
};

// Takes the bytes out of the request that gRPC passes to a method. Otherwise they would stay for as
// long as the call, and a client that does not read the answer, or that keeps a stream open, would
// keep them in memory.
grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request);

// Reads a request without operands, and without unknown fields. `max_bytes`: MethodRule::max_bytes
// of its method. Errors: ResourceExhausted, as from gRPC, for too many bytes, or if there is no
// memory to parse them; InvalidArgument if the bytes are not such a message, or have more unknown
// fields than Incoming allows.
absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& request,
                         int64_t max_bytes);

}  // namespace gemmd
