// SPDX-License-Identifier: Apache-2.0
#include "server/wire/listing.h"

#include <google/protobuf/io/coded_stream.h>

#include <array>
#include <cstdint>

namespace gemmd {
namespace {

constexpr uint32_t kLengthDelimited = 2;  // The wire type of messages.

}  // namespace

void AppendField(int field, std::string_view message, std::string& bytes) {
  using google::protobuf::io::CodedOutputStream;
  constexpr size_t kLongestNumber = 5;
  std::array<uint8_t, 2 * kLongestNumber> head = {};
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(
      (static_cast<uint32_t>(field) << 3) | kLengthDelimited, head.data());
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(message.size()), end);
  bytes.append(reinterpret_cast<const char*>(head.data()), static_cast<size_t>(end - head.data()));
  bytes += message;
}

Listing::Listing(int field, const std::vector<ListedItem>& items) {
  std::string bytes;
  for (const ListedItem& item : items) {
    AppendField(field, item.bytes, bytes);
    names_.push_back(item.name);
    ends_.push_back(bytes.size());
  }
  bytes_ = grpc::Slice(bytes);
}

grpc::ByteBuffer Listing::Answer(absl::FunctionRef<bool(size_t, std::string_view)> keep) const {
  std::vector<grpc::Slice> runs;
  size_t begin = 0;  // A run of kept items begins here and ends at `end`.
  size_t end = 0;
  const auto close_run = [&] {
    if (end > begin) runs.push_back(bytes_.sub(begin, end));
  };
  for (size_t i = 0; i < names_.size(); ++i) {
    if (keep(i, names_[i])) {
      end = ends_[i];
      continue;
    }
    close_run();
    begin = end = ends_[i];
  }
  close_run();
  return grpc::ByteBuffer(runs.data(), runs.size());
}

}  // namespace gemmd
