// SPDX-License-Identifier: Apache-2.0
#include "server/wire/header_paths.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

namespace gemmd {

namespace {

constexpr std::string_view kPathName = ":path";
constexpr std::string_view kBinarySuffix = "-bin";

// RFC 7541, Appendix A. No value of these is the path of a method.
constexpr std::string_view kStaticNames[] = {":authority",
                                             ":method",
                                             ":method",
                                             ":path",
                                             ":path",
                                             ":scheme",
                                             ":scheme",
                                             ":status",
                                             ":status",
                                             ":status",
                                             ":status",
                                             ":status",
                                             ":status",
                                             ":status",
                                             "accept-charset",
                                             "accept-encoding",
                                             "accept-language",
                                             "accept-ranges",
                                             "accept",
                                             "access-control-allow-origin",
                                             "age",
                                             "allow",
                                             "authorization",
                                             "cache-control",
                                             "content-disposition",
                                             "content-encoding",
                                             "content-language",
                                             "content-length",
                                             "content-location",
                                             "content-range",
                                             "content-type",
                                             "cookie",
                                             "date",
                                             "etag",
                                             "expect",
                                             "expires",
                                             "from",
                                             "host",
                                             "if-match",
                                             "if-modified-since",
                                             "if-none-match",
                                             "if-range",
                                             "if-unmodified-since",
                                             "last-modified",
                                             "link",
                                             "location",
                                             "max-forwards",
                                             "proxy-authenticate",
                                             "proxy-authorization",
                                             "range",
                                             "referer",
                                             "refresh",
                                             "retry-after",
                                             "server",
                                             "set-cookie",
                                             "strict-transport-security",
                                             "transfer-encoding",
                                             "user-agent",
                                             "vary",
                                             "via",
                                             "www-authenticate"};
constexpr size_t kStaticFields = std::size(kStaticNames);
static_assert(kStaticFields == 61);

// What a field counts in the table beside its name and value.
constexpr size_t kFieldBytes = 32;

// RFC 7541, Appendix B: the bits of each byte's code, and of the end's. The codes follow from them:
// those of one length are consecutive, in the order of the bytes.
constexpr size_t kEnd = 256;
constexpr uint8_t kCodeBits[kEnd + 1] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6,  10, 10, 12, 13, 6,  8,  11, 10, 10, 8,  11, 8,  6,  6,  6,
    5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8,  15, 6,  12, 10, 13, 6,  7,  7,  7,  7,  7,  7,
    7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8,  13, 19, 13, 14, 6,
    15, 5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,  6,  7,  6,  5,  5,  6,  7,  7,
    7,  7,  7,  15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30};

constexpr size_t kMaxCodeBits = 30;

// The codes by their length.
struct Codes {
  std::array<uint32_t, kMaxCodeBits + 1> first = {};   // The smallest code,
  std::array<uint32_t, kMaxCodeBits + 1> count = {};   // how many there are,
  std::array<uint32_t, kMaxCodeBits + 1> before = {};  // and how many are shorter.
  std::array<uint16_t, kEnd + 1> symbols = {};         // In the order of their codes.
};

constexpr Codes MakeCodes() {
  Codes codes;
  uint32_t code = 0;
  uint32_t symbols = 0;
  for (size_t bits = 1; bits <= kMaxCodeBits; ++bits) {
    code <<= 1;
    codes.first[bits] = code;
    codes.before[bits] = symbols;
    for (size_t symbol = 0; symbol <= kEnd; ++symbol) {
      if (kCodeBits[symbol] != bits) continue;
      codes.symbols[symbols++] = static_cast<uint16_t>(symbol);
      ++code;
    }
    codes.count[bits] = code - codes.first[bits];
  }
  return codes;
}
constexpr Codes kCodes = MakeCodes();

// Nullopt for the code of the end, and for padding that is longer than seven bits or not all ones:
// after such padding gRPC silently drops the other bytes that it has, so it sees other fields.
std::optional<std::string> Decoded(std::span<const uint8_t> bytes) {
  std::string text;
  uint32_t code = 0;
  size_t bits = 0;
  for (const uint8_t byte : bytes) {
    for (int shift = 7; shift >= 0; --shift) {
      code = code << 1 | (byte >> shift & 1);
      ++bits;
      const uint32_t index = code - kCodes.first[bits];
      if (code < kCodes.first[bits] || index >= kCodes.count[bits]) continue;
      const uint16_t symbol = kCodes.symbols[kCodes.before[bits] + index];
      if (symbol == kEnd) return std::nullopt;
      text += static_cast<char>(symbol);
      code = 0;
      bits = 0;
    }
  }
  if (bits > 7 || code != (uint32_t{1} << bits) - 1) return std::nullopt;
  return text;
}

// The bytes of a binary value without its encoding: either a zero precedes them, or they are in
// base64.
size_t BinaryBytes(std::string_view value) {
  if (value.starts_with('\0')) return value.size() - 1;
  const size_t digits = value.find_last_not_of('=') + 1;  // 0 if there are none.
  return digits / 4 * 3 + digits % 4 * 3 / 4;
}

}  // namespace

class HeaderPaths::Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool is_at_end() const { return bytes_.empty(); }
  uint8_t next() const { return bytes_.front(); }

  // A number that begins in the lowest bits of the next byte.
  std::optional<size_t> Number(int prefix_bits) {
    if (bytes_.empty()) return std::nullopt;
    const uint64_t max = (uint64_t{1} << prefix_bits) - 1;
    uint64_t number = Take() & max;
    if (number < max) return number;
    for (int shift = 0; shift < 32 && !bytes_.empty(); shift += 7) {
      const uint8_t byte = Take();
      number += uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return number;
    }
    return std::nullopt;
  }

  std::optional<std::string> Text() {
    if (bytes_.empty()) return std::nullopt;
    const bool is_coded = (next() & 0x80) != 0;
    const std::optional<size_t> length = Number(7);
    if (!length || *length > bytes_.size()) return std::nullopt;
    const std::span<const uint8_t> text = bytes_.first(*length);
    bytes_ = bytes_.subspan(*length);
    return is_coded ? Decoded(text) : std::string(text.begin(), text.end());
  }

 private:
  uint8_t Take() {
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  std::span<const uint8_t> bytes_;
};

std::optional<std::string_view> HeaderPaths::Read(std::span<const uint8_t> block) {
  path_.clear();
  Reader reader(block);
  while (!is_lost_ && !reader.is_at_end()) is_lost_ = !ReadField(reader);
  if (is_lost_) return std::nullopt;
  return path_;
}

bool HeaderPaths::ReadField(Reader& reader) {
  const uint8_t kind = reader.next();
  const bool is_indexed = (kind & 0x80) != 0;
  const bool is_kept = !is_indexed && (kind & 0x40) != 0;
  const bool is_resize = !is_indexed && !is_kept && (kind & 0x20) != 0;
  const std::optional<size_t> number = reader.Number(is_indexed  ? 7
                                                     : is_kept   ? 6
                                                     : is_resize ? 5
                                                                 : 4);
  if (!number) return false;
  if (is_resize) {
    if (*number > kMaxTableBytes) return false;
    max_table_bytes_ = *number;
    ShrinkTo(max_table_bytes_);
    return true;
  }
  if (is_indexed) {
    const Field* const field = Find(*number);
    if (field != nullptr && field->is_path) path_ = field->path;
    return field != nullptr;
  }
  const std::optional<Field> field = Literal(reader, *number);
  if (!field) return false;
  if (field->is_path) path_ = field->path;
  if (is_kept) Insert(*field);
  return true;
}

// Null if there is none. Of static fields only the name counts here.
const HeaderPaths::Field* HeaderPaths::Find(size_t index) const {
  static const auto* const kStatic = [] {
    auto* const fields = new std::array<Field, kStaticFields>;
    for (size_t i = 0; i < kStaticFields; ++i) {
      const std::string_view name = kStaticNames[i];
      (*fields)[i] = {.is_path = name == kPathName, .name_bytes = name.size()};
    }
    return fields;
  }();
  if (index == 0) return nullptr;
  if (index <= kStaticFields) return &(*kStatic)[index - 1];
  index -= kStaticFields + 1;
  return index < table_.size() ? &table_[index] : nullptr;
}

std::optional<HeaderPaths::Field> HeaderPaths::Literal(Reader& reader, size_t name_index) const {
  Field field;
  if (name_index > 0) {
    const Field* const named = Find(name_index);
    if (named == nullptr) return std::nullopt;
    field = {
        .is_path = named->is_path, .is_binary = named->is_binary, .name_bytes = named->name_bytes};
  } else {
    const std::optional<std::string> name = reader.Text();
    if (!name) return std::nullopt;
    field = {.is_path = *name == kPathName,
             .is_binary = name->ends_with(kBinarySuffix),
             .name_bytes = name->size()};
  }
  const std::optional<std::string> value = reader.Text();
  if (!value) return std::nullopt;
  field.value_bytes = field.is_binary ? BinaryBytes(*value) : value->size();
  if (field.is_path) field.path = value->substr(0, kMaxPathBytes);
  return field;
}

void HeaderPaths::Insert(const Field& field) {
  const size_t bytes = field.name_bytes + field.value_bytes + kFieldBytes;
  // A field that is larger than the table empties it.
  ShrinkTo(max_table_bytes_ - std::min(bytes, max_table_bytes_));
  if (bytes > max_table_bytes_) return;
  table_.push_front(field);
  table_bytes_ += bytes;
}

void HeaderPaths::ShrinkTo(size_t bytes) {
  while (table_bytes_ > bytes) {
    table_bytes_ -= table_.back().name_bytes + table_.back().value_bytes + kFieldBytes;
    table_.pop_back();
  }
}

}  // namespace gemmd
