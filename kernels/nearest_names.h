// SPDX-License-Identifier: Apache-2.0
//
// Look-up of known names, and the error for an unknown name, which lists the most similar known
// names.
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

// Built once from constant names, so that unknown names cost the daemon little time.
class NameIndex {
 public:
  explicit NameIndex(absl::Span<const std::string_view> names);

  // The name's position in the list from which the index was built.
  std::optional<size_t> Find(std::string_view name) const;

  // The positions of the `count` names of the least edit distance (bytes inserted, deleted and
  // replaced) to the first kMaxNameBytes of `name`, nearest first; equally near names in order of
  // position. Adds to `columns`, if not null, the number of computed columns of edit-distance
  // tables: each takes a few operations on 64 or 128 bits.
  std::vector<size_t> Nearest(std::string_view name, size_t count, size_t* columns = nullptr) const;

  // The position of the nearest name if it is similar to `name`: at most a third of the bytes
  // differ, or two bytes of a short name.
  std::optional<size_t> Similar(std::string_view name) const;

  // NotFound: "field: got name, want WANTED (nearest: ...)". The message holds only the beginning
  // of `name`, which comes from a peer and may be of any length.
  absl::Status Unknown(std::string_view field, std::string_view name,
                       std::string_view wanted) const;

 private:
  struct Entry {
    std::string name;
    size_t position = 0;
    size_t shared = 0;  // Length of the prefix shared with the previous name.
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
