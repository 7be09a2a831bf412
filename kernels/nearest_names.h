// SPDX-License-Identifier: Apache-2.0
//
// Known names: finding one, and the error for an unknown one with the known names that look most
// like it.
#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gemmd {

// Made once of names that do not change, so that an unknown name takes little of the daemon's time.
class NameIndex {
 public:
  explicit NameIndex(absl::Span<const std::string_view> names);

  // The name's position among those that the index was made of.
  std::optional<size_t> Find(std::string_view name) const;

  // The positions of the `count` names of the least edit distance (bytes inserted, deleted and
  // replaced) to the first kMaxNameBytes of `name`, nearest first; of names as near as one another
  // the one with the lower position first. Adds to `columns`, if not null, how many columns of the
  // tables of edit distances it computed: each takes a few operations on 64 or 128 bits.
  std::vector<size_t> Nearest(std::string_view name, size_t count, size_t* columns = nullptr) const;

  // The position of the nearest name if it looks like `name`: at most a third of its bytes, or two
  // where they are few, are other ones.
  std::optional<size_t> Similar(std::string_view name) const;

  // NotFound: "field: got name, want WANTED (nearest: ...)". The message holds only the beginning
  // of `name`, which comes from a peer and may be of any length.
  absl::Status Unknown(std::string_view field, std::string_view name,
                       std::string_view wanted) const;

 private:
  struct Entry {
    std::string name;
    size_t position = 0;
    size_t shared = 0;  // Bytes at its beginning that the name before it has too.
  };

  struct Near {
    int distance;
    size_t position;

    auto operator<=>(const Near&) const = default;
  };
  class Least;

  std::vector<Near> FindNearest(std::string_view name, size_t count, size_t* columns) const;

  std::vector<Entry> sorted_;    // By name.
  std::vector<size_t> entries_;  // By position: where the name is in `sorted_`.
  size_t longest_ = 0;
};

}  // namespace gemmd
