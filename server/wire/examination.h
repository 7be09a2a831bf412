// SPDX-License-Identifier: Apache-2.0
//
// A look through the bytes of a message before anything is made of them: whether they are one, what
// they will take, and which of its fields are better left where they are.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/slice.h>

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/wire/received_slices.h"

namespace gemmd {

// A field of bytes at least as long stays in its slices; a shorter one is sooner copied.
inline constexpr int64_t kHeldFromBytes = int64_t{32} << 10;

// But not one whose slices are shorter than this on average: the memory that each is a part of, and
// what names it, would take more than its bytes.
inline constexpr int64_t kLeastSliceBytes = int64_t{4} << 10;

// What a message has of fields, those of messages within it included, and what one of text may have
// of bytes: a few dozen, and 128 bytes, are of use. To go through ten million empty fields, which
// 20 MB hold, takes seconds.
inline constexpr int64_t kMostFields = 1024;
inline constexpr int64_t kMostTextBytes = int64_t{1} << 20;

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

  absl::Status Fields(Message& message, Holding holding);
  absl::Status Unknown(uint32_t tag, int start);
  absl::Status Known(const Field& field, uint32_t tag, int start, Message& message,
                     Holding holding);
  absl::Status Delimited(const Field& field, int start, Message& message, Holding holding);
  absl::Status Within(const Field& field, int start, int bytes, Message& message, Holding holding);
  absl::Status Element(const Field& field, int bytes, const Message& message);
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

}  // namespace gemmd
