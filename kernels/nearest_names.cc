// SPDX-License-Identifier: Apache-2.0
#include "kernels/nearest_names.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

constexpr size_t kNearest = 3;  // Known names in the message about an unknown one.
constexpr int kAnyDistance = std::numeric_limits<int>::max();

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

  bool Has(char byte) const { return equal_[static_cast<uint8_t>(byte)] != 0; }

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

// Columns are kept for each prefix length of the known name, so that the prefix shared with the
// previous name is not recomputed. A name is abandoned once it cannot be among the nearest: each
// remaining byte reduces the distance by at most one, and a byte that the unknown name lacks by
// nothing. Returns how many columns it computed.
template <typename Bits, typename Entries, typename Least>
size_t FindLeast(const Entries& sorted, size_t longest, std::string_view name, Least& least) {
  const Comparison<Bits> comparison(name);
  std::vector<Column<Bits>> columns(longest + 1, comparison.First());
  std::vector<int> common(longest + 1);  // Bytes of the prefix that also occur in the unknown name.
  size_t before = 0;                     // Bytes of the previous name,
  size_t computed = 0;                   //   and columns of it.
  size_t steps = 0;
  for (const auto& entry : sorted) {
    const size_t length = entry.name.size();
    for (size_t i = std::min(entry.shared, before); i < length; ++i) {
      common[i + 1] = common[i] + (comparison.Has(entry.name[i]) ? 1 : 0);
    }
    before = length;
    const auto may_be_least = [&](size_t column) {
      const int left = common[length] - common[column];
      return least.MayHave({columns[column].last - left, entry.position});
    };
    size_t column = std::min(entry.shared, computed);
    while (column < length && may_be_least(column)) {
      columns[column + 1] = comparison.Next(columns[column], entry.name[column]);
      ++column;
      ++steps;
    }
    computed = column;
    if (column == length) least.Offer({columns[length].last, entry.position});
  }
  return steps;
}

size_t SharedBytes(std::string_view a, std::string_view b) {
  const auto [differs, _] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(differs - a.begin());
}

}  // namespace

// Keeps the nearest few of the offered names.
class NameIndex::Least {
 public:
  // `most`: an upper bound of all distances.
  Least(size_t count, int most) : count_(count), most_(most) {}

  // Whether a name at this distance may be among the nearest.
  bool MayHave(const Near& near) const {
    if (near.distance > most_) return false;
    return found_.size() < count_ || (count_ > 0 && near < found_.back());
  }

  void Offer(const Near& near) {
    if (!MayHave(near)) return;
    if (found_.size() == count_) found_.pop_back();
    found_.insert(std::upper_bound(found_.begin(), found_.end(), near), near);
  }

  std::vector<Near> Take() { return std::move(found_); }

 private:
  const size_t count_;
  const int most_;
  std::vector<Near> found_;  // Nearest first.
};

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

std::vector<NameIndex::Near> NameIndex::FindNearest(std::string_view name, size_t count,
                                                    size_t* columns) const {
  name = name.substr(0, kMaxNameBytes);
  const auto find = [&](absl::Span<const Entry> entries, int most) {
    Least least(count, most);
    const size_t computed = name.size() <= 64 ? FindLeast<uint64_t>(entries, longest_, name, least)
                                              : FindLeast<Wide>(entries, longest_, name, least);
    if (columns != nullptr) *columns += computed;
    return least.Take();
  };
  // The neighbours in sorted order give an initial upper bound of the distances.
  const auto beside = std::lower_bound(
      sorted_.begin(), sorted_.end(), name,
      [](const Entry& entry, std::string_view wanted) { return entry.name < wanted; });
  const size_t begin = static_cast<size_t>(beside - sorted_.begin());
  const size_t first = begin > count ? begin - count : 0;
  const absl::Span<const Entry> all = sorted_;
  const std::vector<Near> guess = find(all.subspan(first, 2 * count), kAnyDistance);
  return find(all, guess.size() < count || guess.empty() ? kAnyDistance : guess.back().distance);
}

std::vector<size_t> NameIndex::Nearest(std::string_view name, size_t count, size_t* columns) const {
  std::vector<size_t> positions;
  for (const Near& near : FindNearest(name, count, columns)) positions.push_back(near.position);
  return positions;
}

std::optional<size_t> NameIndex::Similar(std::string_view name) const {
  const std::vector<Near> nearest = FindNearest(name, 1, nullptr);
  if (nearest.empty()) return std::nullopt;
  const size_t edits = static_cast<size_t>(nearest.front().distance);
  const size_t letters = sorted_[entries_[nearest.front().position]].name.size();
  if (edits > std::max<size_t>(2, name.size() / 3) || edits >= letters) return std::nullopt;
  return nearest.front().position;
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
