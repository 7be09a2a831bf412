// SPDX-License-Identifier: Apache-2.0
//
// A list that never changes, kept as the bytes of its answer. Answers are parts of these bytes:
// they take no time to make and, while they wait for a reader, no memory of their own.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"

namespace gemmd {

struct ListedItem {
  std::string name;
  std::string bytes;  // The item's message.
};

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
