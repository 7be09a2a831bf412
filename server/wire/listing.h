// SPDX-License-Identifier: Apache-2.0
//
// Lists that never change, and the patterns by which callers ask for some of their names.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <array>
#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/matrix/text.h"

namespace gemmd {

// Shell patterns for names: `*`, `?`, `[a-z]`, `[!a-z]`, `[[:digit:]]`; a backslash takes what
// follows as it is. They match what fnmatch(3) matches in the C locale.
//
// A peer chooses the pattern, so the time is bounded: a name costs a few instructions for each of
// its bytes, whatever the pattern is, while fnmatch may look at all of a pattern for each of them.
class NamePattern {
 public:
  // `field` names the pattern in the error.
  // Errors: InvalidArgument for a pattern of more than kMaxNameBytes.
  static absl::StatusOr<NamePattern> Parse(std::string_view field, std::string_view pattern);

  // Threads: any.
  bool Matches(std::string_view name) const;

 private:
  using Bytes = std::bitset<256>;
  // A bit for each part of the pattern but stars: the beginning of a name matches the pattern up to
  // that part.
  __extension__ using Parts = unsigned __int128;
  static_assert(kMaxNameBytes <= 8 * sizeof(Parts));

  void AddPart(const Bytes& bytes);
  void AddStar();

  std::array<Parts, 256> takes_ = {};  // By byte: the parts that it matches.
  Parts before_star_ = 0;              // The parts after which a star stands.
  bool begins_with_star_ = false;
  bool is_never_matched_ = false;
  size_t parts_ = 0;
};

struct ListedItem {
  std::string name;
  std::string bytes;  // The item's message.
};

// A list that never changes, kept as the bytes of its answer. Answers are parts of these bytes:
// they take no time to make and, while they wait for a reader, no memory of their own.
class Listing {
 public:
  // The items are those of the repeated field with the number `field`.
  Listing(int field, const std::vector<ListedItem>& items);

  // The answer with the items, given by position and name, for which `keep` is true.
  // Threads: any.
  grpc::ByteBuffer Answer(absl::FunctionRef<bool(size_t, std::string_view)> keep) const;

  // The answer with all items.
  grpc::ByteBuffer All() const { return grpc::ByteBuffer(&bytes_, 1); }

 private:
  std::vector<std::string> names_;
  std::vector<size_t> ends_;  // By position: where the item ends in the bytes.
  grpc::Slice bytes_;
};

// Appends a field with a message in it: tag, length and the message's bytes.
void AppendField(int field, std::string_view message, std::string& bytes);

}  // namespace gemmd
