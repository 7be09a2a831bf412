// SPDX-License-Identifier: Apache-2.0
//
// Finds the paths of calls in the headers of a connection (HPACK, RFC 7541). gRPC reports which
// method is called only once the call's message is there, however long it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gemmd {

// The decoder of one direction of a connection. Of the table of recent fields it keeps sizes and
// paths only. Not safe for threads.
class HeaderPaths {
 public:
  // Paths are cut to this length: no method has a longer one.
  static constexpr size_t kMaxPathBytes = 128;
  // What the table may hold by its own reckoning: gRPC's servers allow no more.
  static constexpr size_t kMaxTableBytes = 4096;

  // The path in the next block of headers, all of its fragments together; empty if it has none, the
  // last of several. Valid until the next one is read. Nullopt if the bytes are not HPACK, and then
  // for all later blocks. Fields that are in the table take no allocation.
  std::optional<std::string_view> Read(std::span<const uint8_t> block);

 private:
  struct Field {
    bool is_path = false;
    bool is_binary = false;  // gRPC decodes the value.
    size_t name_bytes = 0;
    // Decoded, as gRPC counts them. More would evict fields too early, and a peer that refers to
    // them would be closed.
    size_t value_bytes = 0;
    std::string path = {};  // The value, if it is one.
  };
  class Reader;

  bool ReadField(Reader& reader);
  const Field* Find(size_t index) const;
  std::optional<Field> Literal(Reader& reader, size_t name_index) const;
  void Insert(const Field& field);
  void ShrinkTo(size_t bytes);

  std::deque<Field> table_;  // The newest first.
  size_t table_bytes_ = 0;
  size_t max_table_bytes_ = kMaxTableBytes;
  std::string path_;
  bool is_lost_ = false;
};

}  // namespace gemmd
