// SPDX-License-Identifier: Apache-2.0
#include "server/wire/listing.h"

#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/matrix/status.h"
#include "proto/field_start.h"

namespace gemmd {

namespace {

using Bytes = std::bitset<256>;

struct NamedClass {
  std::string_view name;
  int (*contains)(int);
};
constexpr NamedClass kClasses[] = {
    {"alnum", std::isalnum}, {"alpha", std::isalpha}, {"blank", std::isblank},
    {"cntrl", std::iscntrl}, {"digit", std::isdigit}, {"graph", std::isgraph},
    {"lower", std::islower}, {"print", std::isprint}, {"punct", std::ispunct},
    {"space", std::isspace}, {"upper", std::isupper}, {"xdigit", std::isxdigit}};

Bytes BytesOfClass(std::string_view name) {
  Bytes bytes;
  for (const NamedClass& known : kClasses) {
    if (known.name != name) continue;
    for (int c = 0; c < 256; ++c) bytes[static_cast<size_t>(c)] = known.contains(c) != 0;
  }
  return bytes;
}

Bytes BytesFrom(uint8_t first, uint8_t last) {
  Bytes bytes;
  for (int c = first; c <= last; ++c) bytes.set(static_cast<size_t>(c));
  return bytes;
}

// What is between `[` and its `]`. Removes both from `rest`, which begins after `[`. Absent if
// there is no `]`.
class Bracket {
 public:
  explicit Bracket(std::string_view rest) : rest_(rest) {}

  std::optional<Bytes> Read() {
    const bool is_negated = TakeIf('!') || TakeIf('^');
    Bytes bytes;
    for (bool is_first = true; !rest_.empty(); is_first = false) {
      if (!is_first && TakeIf(']')) return is_negated ? ~bytes : bytes;
      if (const std::optional<Bytes> named = TakeClass()) {
        bytes |= *named;
        continue;
      }
      const std::optional<uint8_t> first = TakeByte();
      if (!first) return std::nullopt;
      std::optional<uint8_t> last = first;
      if (rest_.size() >= 2 && rest_[0] == '-' && rest_[1] != ']') {
        rest_.remove_prefix(1);
        last = TakeByte();
        if (!last) return std::nullopt;
      }
      bytes |= BytesFrom(*first, *last);
    }
    return std::nullopt;
  }

  std::string_view rest() const { return rest_; }

 private:
  bool TakeIf(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::optional<uint8_t> TakeByte() {
    TakeIf('\\');
    if (rest_.empty()) return std::nullopt;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }

  // Parses a class, for example "[:digit:]".
  std::optional<Bytes> TakeClass() {
    if (!rest_.starts_with("[:")) return std::nullopt;
    const size_t end = rest_.find(":]", 2);
    if (end == rest_.npos) return std::nullopt;
    const Bytes bytes = BytesOfClass(rest_.substr(2, end - 2));
    rest_.remove_prefix(end + 2);
    return bytes;
  }

  std::string_view rest_;
};

}  // namespace

void NamePattern::AddPart(const Bytes& bytes) {
  for (size_t c = 0; c < takes_.size(); ++c) {
    if (bytes[c]) takes_[c] |= Parts{1} << parts_;
  }
  ++parts_;
}

void NamePattern::AddStar() {
  if (parts_ == 0) {
    begins_with_star_ = true;
  } else {
    before_star_ |= Parts{1} << (parts_ - 1);
  }
}

absl::StatusOr<NamePattern> NamePattern::Parse(std::string_view field, std::string_view pattern) {
  RETURN_IF_ERROR(CheckNameLength(field, pattern));
  NamePattern parsed;
  while (!pattern.empty()) {
    char c = pattern.front();
    pattern.remove_prefix(1);
    if (c == '*') {
      parsed.AddStar();
      continue;
    }
    if (c == '?') {
      parsed.AddPart(Bytes().set());
      continue;
    }
    if (c == '[') {
      Bracket bracket(pattern);
      if (const std::optional<Bytes> bytes = bracket.Read()) {
        parsed.AddPart(*bytes);
        pattern = bracket.rest();
        continue;
      }
    }
    if (c == '\\') {
      if (pattern.empty()) {
        parsed.is_never_matched_ = true;
        break;
      }
      c = pattern.front();
      pattern.remove_prefix(1);
    }
    parsed.AddPart(Bytes().set(static_cast<uint8_t>(c)));
  }
  return parsed;
}

bool NamePattern::Matches(std::string_view name) const {
  if (is_never_matched_) return false;
  if (parts_ == 0) return begins_with_star_ || name.empty();
  Parts reached = 0;
  bool is_at_beginning = true;  // Whether the first part may match the next byte.
  for (const char c : name) {
    reached = (((reached << 1) | (is_at_beginning ? 1 : 0)) & takes_[static_cast<uint8_t>(c)]) |
              (reached & before_star_);
    is_at_beginning = begins_with_star_;
    if (reached == 0 && !is_at_beginning) return false;
  }
  return ((reached >> (parts_ - 1)) & 1) != 0;
}

Listing::Listing(int field, const std::vector<ListedItem>& items) {
  std::string bytes;
  for (const ListedItem& item : items) {
    AppendFieldStart(field, item.bytes.size(), bytes);
    bytes += item.bytes;
    names_.push_back(item.name);
    ends_.push_back(bytes.size());
  }
  bytes_ = grpc::Slice(bytes);
}

grpc::ByteBuffer Listing::Answer(absl::FunctionRef<bool(size_t, std::string_view)> keep) const {
  std::vector<grpc::Slice> runs;
  size_t begin = 0;  // A run of kept items, [begin, end).
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
