// SPDX-License-Identifier: Apache-2.0
#include "kernels/nearest_names.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/peer_text.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr size_t kNearest = 3;  // Known names in the message about an unknown one.

// One bit for each byte of the unknown name.
__extension__ using Wide = unsigned __int128;
static_assert(kMaxNameBytes <= 8 * sizeof(Wide));

// A column of the table of edit distances between the unknown name (downwards) and a known one
// (to the right), as the differences between neighbours: the step of G. Myers, "A fast bit-vector
// algorithm for approximate string matching based on dynamic programming" (1999), as H. Hyyro
// writes it for the distance of whole strings.
template <typename Bits>
struct Column {
  Bits rises;  // Rows whose distance is one more than that of the row above,
  Bits falls;  // and one less.
  int last;    // The distance in the last row.
};

template <typename Bits>
class Comparison {
 public:
  explicit Comparison(std::string_view name) : rows_(name.size()) {
    for (size_t i = 0; i < rows_; ++i) equal_[static_cast<uint8_t>(name[i])] |= Bits{1} << i;
  }

  Column<Bits> First() const { return {~Bits{0}, 0, static_cast<int>(rows_)}; }

  // The column to the right of `left`, at the byte `next` of the known name.
  Column<Bits> Next(const Column<Bits>& left, char next) const {
    const Bits equal = equal_[static_cast<uint8_t>(next)];
    const Bits level = (((equal & left.rises) + left.rises) ^ left.rises) | equal | left.falls;
    Bits up = left.falls | ~(level | left.rises);
    Bits down = left.rises & level;
    int last = left.last;
    if (rows_ == 0) {
      ++last;
    } else {
      last +=
          static_cast<int>((up >> (rows_ - 1)) & 1) - static_cast<int>((down >> (rows_ - 1)) & 1);
    }
    up = (up << 1) | 1;  // In the row above the first one the distance is the column's number.
    down <<= 1;
    return {down | ~(level | up), up & level, last};
  }

 private:
  const size_t rows_;
  std::array<Bits, 256> equal_ = {};  // By byte: where the unknown name has it.
};

struct Near {
  int distance;
  size_t position;

  auto operator<=>(const Near&) const = default;
};

// The least few of those that were offered.
class Least {
 public:
  explicit Least(size_t count) : count_(count) {}

  void Offer(const Near& near) {
    if (found_.size() == count_ && (count_ == 0 || found_.back() < near)) return;
    if (found_.size() == count_) found_.pop_back();
    found_.insert(std::upper_bound(found_.begin(), found_.end(), near), near);
  }

  std::vector<size_t> positions() const {
    std::vector<size_t> positions;
    for (const Near& near : found_) positions.push_back(near.position);
    return positions;
  }

 private:
  const size_t count_;
  std::vector<Near> found_;  // Least first.
};

// Columns are kept for each length of the known name's beginning: what a name shares with the one
// before it is not computed again.
template <typename Bits, typename Entries>
std::vector<size_t> FindNearest(const Entries& sorted, size_t longest, std::string_view name,
                                size_t count) {
  const Comparison<Bits> comparison(name);
  std::vector<Column<Bits>> columns(longest + 1, comparison.First());
  Least least(count);
  for (const auto& entry : sorted) {
    for (size_t i = entry.shared; i < entry.name.size(); ++i) {
      columns[i + 1] = comparison.Next(columns[i], entry.name[i]);
    }
    least.Offer({columns[entry.name.size()].last, entry.position});
  }
  return least.positions();
}

size_t SharedBytes(std::string_view a, std::string_view b) {
  const auto [differs, _] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(differs - a.begin());
}

}  // namespace

NameIndex::NameIndex(absl::Span<const std::string_view> names) : entries_(names.size()) {
  for (size_t i = 0; i < names.size(); ++i) sorted_.push_back({std::string(names[i]), i});
  std::sort(sorted_.begin(), sorted_.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  std::string_view before;
  for (size_t i = 0; i < sorted_.size(); ++i) {
    Entry& entry = sorted_[i];
    entry.shared = SharedBytes(before, entry.name);
    entries_[entry.position] = i;
    longest_ = std::max(longest_, entry.name.size());
    before = entry.name;
  }
}

std::optional<size_t> NameIndex::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      sorted_.begin(), sorted_.end(), name,
      [](const Entry& entry, std::string_view wanted) { return entry.name < wanted; });
  if (found == sorted_.end() || found->name != name) return std::nullopt;
  return found->position;
}

std::vector<size_t> NameIndex::Nearest(std::string_view name, size_t count) const {
  name = name.substr(0, kMaxNameBytes);
  if (name.size() <= 64) return FindNearest<uint64_t>(sorted_, longest_, name, count);
  return FindNearest<Wide>(sorted_, longest_, name, count);
}

absl::Status NameIndex::Unknown(std::string_view field, std::string_view name,
                                std::string_view wanted) const {
  std::string nearest;
  for (const size_t position : Nearest(name, kNearest)) {
    AppendPart(nearest, Concat(nearest.empty() ? "" : ", ", sorted_[entries_[position]].name));
  }
  return absl::NotFoundError(
      GotWant(field, Shown(name), Concat(wanted, " (nearest: ", nearest, ")")));
}

}  // namespace gemmd
