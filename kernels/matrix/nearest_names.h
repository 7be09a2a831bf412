// SPDX-License-Identifier: Apache-2.0
//
// Look-up of known names, and the names most similar to an unknown one: those with the smallest
// edit distance, the number of bytes to insert, delete, replace or swap with a neighbour.
//
// A peer chooses the unknown name, so the time is limited: each byte of a known name costs a few
// operations on 64 or 128 bits, and bytes that cannot matter are not read.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/matrix/text.h"

namespace gemmd {

class NameIndex {
 public:
  explicit NameIndex(absl::Span<const std::string_view> names) {
    for (size_t i = 0; i < names.size(); ++i) {
      sorted_.push_back({std::string(names[i]), i});
      longest_ = std::max(longest_, names[i].size());
    }
    std::sort(sorted_.begin(), sorted_.end(),
              [](const Known& a, const Known& b) { return a.name < b.name; });
    for (size_t i = 1; i < sorted_.size(); ++i) {
      const std::string& name = sorted_[i].name;
      const std::string& before = sorted_[i - 1].name;
      const auto [differs, _] =
          std::mismatch(name.begin(), name.end(), before.begin(), before.end());
      sorted_[i].shared = static_cast<size_t>(differs - name.begin());
    }
  }

  // The name's position in the list from which the index was built.
  std::optional<size_t> Find(std::string_view name) const {
    const auto found = std::lower_bound(
        sorted_.begin(), sorted_.end(), name,
        [](const Known& known, std::string_view wanted) { return known.name < wanted; });
    if (found == sorted_.end() || found->name != name) return std::nullopt;
    return found->position;
  }

  struct Near {
    size_t distance;
    size_t position;
    std::string_view name;

    bool operator<(const Near& other) const {
      return std::pair(distance, position) < std::pair(other.distance, other.position);
    }
  };

  // The `count` names nearest to the first kMaxNameBytes of `name`, nearest first; equally near
  // names in order of position. Adds to `columns`, if not null, the number of computed columns of
  // edit-distance tables.
  std::vector<Near> Nearest(std::string_view name, size_t count, size_t* columns = nullptr) const {
    __extension__ using Wide = unsigned __int128;
    static_assert(kMaxNameBytes <= 8 * sizeof(Wide));
    name = name.substr(0, kMaxNameBytes);
    return name.size() <= 64 ? NearestWithin<uint64_t>(name, count, columns)
                             : NearestWithin<Wide>(name, count, columns);
  }

  // The nearest name that is similar to `name`: at most a third of the bytes differ, or two bytes
  // of a short name, but not all of its bytes.
  std::optional<std::string> Similar(std::string_view name) const {
    const size_t max_edits = std::max<size_t>(2, std::min(name.size(), kMaxNameBytes) / 3);
    for (const Near& near : Nearest(name, kSuggested)) {
      if (near.distance <= max_edits && near.distance < near.name.size()) {
        return std::string(near.name);
      }
    }
    return std::nullopt;
  }

  // NotFound: "field: got name, want WANTED (nearest: ...)". The message holds only the beginning
  // of `name`, which comes from a peer and may be of any length.
  absl::Status Unknown(std::string_view field, std::string_view name,
                       std::string_view wanted) const {
    std::string nearest;
    for (const Near& near : Nearest(name, kSuggested)) {
      AppendPart(nearest, Concat(nearest.empty() ? "" : ", ", near.name));
    }
    return absl::NotFoundError(
        GotWant(field, Shown(name), Concat(wanted, " (nearest: ", nearest, ")")));
  }

 private:
  static constexpr size_t kSuggested = 3;

  struct Known {
    std::string name;
    size_t position = 0;
    size_t shared = 0;  // Bytes of the prefix shared with the previous name.
  };

  template <typename Bits>
  std::vector<Near> NearestWithin(std::string_view name, size_t count, size_t* columns) const;

  std::vector<Known> sorted_;  // By name.
  size_t longest_ = 0;         // The length of the longest name.
};

// The table of edit distances has a row for each byte of the unknown name and a column for each
// byte of a known one. Neighbouring cells differ by at most one, so a column is kept as bits: G.
// Myers, "A fast bit-vector algorithm for approximate string matching based on dynamic programming"
// (1999), with the swaps of H. Hyyro, "A bit-vector algorithm for computing Levenshtein and Damerau
// edit distances" (2003).
//
// `Bits` has a bit for each byte of the unknown name.
template <typename Bits>
std::vector<NameIndex::Near> NameIndex::NearestWithin(std::string_view name, size_t count,
                                                      size_t* columns) const {
  struct Column {
    Bits equal;   // Rows whose byte is that of the column.
    Bits level;   // Rows whose distance is that of the row above in the column to the left.
    Bits rises;   // Rows whose distance is one more than that of the row above,
    Bits falls;   // and one less.
    size_t last;  // The distance in the last row.
  };
  std::array<Bits, 256> equal = {};  // By byte: the rows that have it.
  std::array<bool, 256> is_in_name = {};
  for (size_t i = 0; i < name.size(); ++i) {
    equal[static_cast<uint8_t>(name[i])] |= Bits{1} << i;
    is_in_name[static_cast<uint8_t>(name[i])] = true;
  }
  const Bits last_row = name.empty() ? 0 : Bits{1} << (name.size() - 1);
  const auto next = [&](const Column& left, char byte) {
    const Bits same = equal[static_cast<uint8_t>(byte)];
    const Bits swapped = (~left.level & same) << 1 & left.equal;
    const Bits level =
        swapped | (((same & left.rises) + left.rises) ^ left.rises) | same | left.falls;
    const Bits up = left.falls | ~(level | left.rises);
    const Bits down = left.rises & level;
    const size_t last = left.last + (name.empty() || (up & last_row) != 0 ? 1 : 0) -
                        ((down & last_row) != 0 ? 1 : 0);
    const Bits above = up << 1 | 1;  // In the row above the first, the distance is the column.
    return Column{same, level, down << 1 | ~(level | above), above & level, last};
  };

  // Columns of the prefix that a name shares with the previous one are kept, and a name is
  // abandoned once it cannot be among the nearest: a further byte reduces the distance by at most
  // one, and only if the unknown name has it.
  std::vector<Near> nearest;
  std::vector<Column> table(longest_ + 1);   // By length of a prefix of the known name.
  std::vector<size_t> common(longest_ + 1);  // The same: the bytes that the unknown name has, too.
  table[0] = {0, ~Bits{0}, ~Bits{0}, 0, name.size()};
  size_t computed = 0;  // Columns of the previous name,
  size_t counted = 0;   // and all of its bytes.
  if (count == 0) return nearest;
  for (const auto& [known, position, shared] : sorted_) {
    for (size_t j = std::min(counted, shared); j < known.size(); ++j) {
      common[j + 1] = common[j] + (is_in_name[static_cast<uint8_t>(known[j])] ? 1 : 0);
    }
    counted = known.size();
    size_t column = std::min(computed, shared);
    const auto place = position;  // Clang's lambdas cannot use parts of the entry.
    const auto may_be_near = [&] {
      const size_t left = common[counted] - common[column];
      const size_t distance = std::max(table[column].last, left) - left;
      return nearest.size() < count || distance < nearest.back().distance ||
             (distance == nearest.back().distance && place < nearest.back().position);
    };
    for (; may_be_near() && column < known.size(); ++column) {
      table[column + 1] = next(table[column], known[column]);
      if (columns != nullptr) ++*columns;
    }
    computed = column;
    if (!may_be_near()) continue;
    const Near near = {table[column].last, position, known};
    if (nearest.size() == count) nearest.pop_back();
    nearest.insert(std::upper_bound(nearest.begin(), nearest.end(), near), near);
  }
  return nearest;
}

}  // namespace gemmd
