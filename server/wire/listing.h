// SPDX-License-Identifier: Apache-2.0
//
// Lists that never change, and the patterns that select some of their names.
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

// Shell patterns for names: `*`, `?`, `[a-z]`, `[!a-z]`, `[[:digit:]]`; a backslash quotes the
// character after it. They match what fnmatch(3) matches in the C locale.
//
// A peer chooses the pattern, so the time must be bounded: matching takes a few instructions per
// byte of the name, whatever the pattern is, while fnmatch may scan the whole pattern for each
// byte.
class NamePattern {
 public:
  // `field` is the field that the error names. Errors: InvalidArgument for a pattern longer than
  // kMaxNameBytes.
  static absl::StatusOr<NamePattern> Parse(std::string_view field, std::string_view pattern);

  // Threads: any.
  bool Matches(std::string_view name) const;

 private:
  using Bytes = std::bitset<256>;
  // One bit per part of the pattern, stars excepted. A set bit means that the name so far matches
  // the pattern up to that part.
  __extension__ using Parts = unsigned __int128;
  static_assert(kMaxNameBytes <= 8 * sizeof(Parts));

  void AddPart(const Bytes& bytes);
  void AddStar();

  std::array<Parts, 256> takes_ = {};  // By byte: the parts that match it.
  Parts before_star_ = 0;              // The parts that a star follows.
  bool begins_with_star_ = false;
  bool is_never_matched_ = false;
  size_t parts_ = 0;
};

struct ListedItem {
  std::string name;
  std::string bytes;  // The serialized message of the item.
};

// A list that never changes, kept as the bytes of its answer. Answers are slices of these bytes:
// they take no time to make and, while they wait for a reader, no memory of their own.
class Listing {
 public:
  // The items belong to the repeated field numbered `field`.
  Listing(int field, const std::vector<ListedItem>& items);

  // The answer with those items for whose index and name `keep` returns true. Threads: any.
  grpc::ByteBuffer Answer(absl::FunctionRef<bool(size_t, std::string_view)> keep) const;

  // The answer with all items.
  grpc::ByteBuffer All() const { return grpc::ByteBuffer(&bytes_, 1); }

 private:
  std::vector<std::string> names_;
  std::vector<size_t> ends_;  // By index: where the item ends in the bytes.
  grpc::Slice bytes_;
};

}  // namespace gemmd
