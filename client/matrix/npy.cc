// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/npy.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/matrix/packed_matrix.h"
#include "client/output_file.h"
#include "gemmd/element_codec.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// NumPy's own limit for untrusted files.
constexpr int64_t kMaxNpyHeaderBytes = 10000;

// Magic string and version.
constexpr int64_t kNpyPrefixBytes = 8;

constexpr int kMaxNpyDimensions = 3;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

constexpr absl::string_view kNpyMagic("\x93NUMPY", 6);

// Reads the header from left to right. A function that fails sets `error_`; the first error is
// kept.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<NpyHeader> Parse() {
    Expect('{');
    while (ok() && !Take('}')) {
      ParseEntry();
      if (!Take(',') && !At('}')) Fail("',' or '}'");
    }
    ExpectPadding();
    if (ok() && !(has_descr_ && has_order_ && has_shape_)) {
      Fail("the keys 'descr', 'fortran_order' and 'shape'");
    }
    if (!ok()) return absl::InvalidArgumentError(error_);
    return header_;
  }

 private:
  bool ok() const { return error_.empty(); }

  void Fail(absl::string_view want) {
    if (!ok()) return;
    const std::string rest = absl::CHexEscape(text_.substr(position_, 16));
    const std::string got =
        rest.empty() ? "the end"
                     : absl::StrCat("\"", absl::StrReplaceAll(rest, {{"\\'", "'"}}), "\"");
    error_ = absl::StrCat("npy header, byte ", position_, ": got ", got, ", want ", want);
  }

  void SkipSpaces() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  bool At(char c) {
    SkipSpaces();
    return position_ < text_.size() && text_[position_] == c;
  }

  bool Take(char c) {
    const bool found = ok() && At(c);
    if (found) ++position_;
    return found;
  }

  bool TakeWord(absl::string_view word) {
    SkipSpaces();
    const bool found = ok() && text_.substr(position_, word.size()) == word;
    if (found) position_ += word.size();
    return found;
  }

  void Expect(char c) {
    if (!Take(c)) Fail(absl::StrCat("'", absl::string_view(&c, 1), "'"));
  }

  void ParseEntry() {
    const absl::string_view key = ParseString();
    Expect(':');
    if (!ok()) return;
    if (key == "descr" && !has_descr_) {
      has_descr_ = true;
      ParseDescr();
    } else if (key == "fortran_order" && !has_order_) {
      has_order_ = true;
      header_.fortran_order = TakeWord("True");
      if (!header_.fortran_order && !TakeWord("False")) Fail("True or False");
    } else if (key == "shape" && !has_shape_) {
      has_shape_ = true;
      ParseShape();
    } else {
      Fail("each of the keys 'descr', 'fortran_order' and 'shape' once");
    }
  }

  // A quoted string of printable characters without escapes.
  absl::string_view ParseString() {
    SkipSpaces();
    const char quote = At('\'') ? '\'' : '"';
    if (!Take(quote)) {
      Fail("a quoted string");
      return "";
    }
    const size_t begin = position_;
    for (; position_ < text_.size(); ++position_) {
      const char c = text_[position_];
      if (c == quote) return text_.substr(begin, position_++ - begin);
      if (c < ' ' || c > '~' || c == '\\') break;
    }
    Fail("a printable character or the closing quote");
    return "";
  }

  // Byte order, kind and size: "<f4".
  void ParseDescr() {
    if (At('[')) return Fail("a plain element type (structured arrays are not matrices)");
    const size_t begin = position_;
    const absl::string_view descr = ParseString();
    if (!ok()) return;
    position_ = begin;
    const bool is_plain = descr.size() >= 3 && descr.size() <= 5 &&
                          (descr[0] == '<' || descr[0] == '>' || descr[0] == '|') &&
                          absl::ascii_isalpha(static_cast<unsigned char>(descr[1])) &&
                          absl::SimpleAtoi(descr.substr(2), &header_.item_bytes) &&
                          header_.item_bytes > 0;
    if (!is_plain) return Fail("an element type such as '<f4'");
    header_.byte_order = descr[0];
    header_.kind = descr[1];
    ParseString();
  }

  // "()", "(3,)", "(2, 3)".
  void ParseShape() {
    Expect('(');
    bool has_comma = false;
    while (ok() && !Take(')')) {
      if (header_.shape.size() == kMaxNpyDimensions) {
        return Fail(absl::StrCat("at most ", kMaxNpyDimensions, " dimensions"));
      }
      ParseExtent();
      has_comma = Take(',');
      if (!has_comma && !At(')')) Fail("',' or ')'");
      if (!has_comma && header_.shape.size() == 1) Fail("a comma after the only extent");
    }
  }

  void ParseExtent() {
    SkipSpaces();
    const size_t begin = position_;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9')
      ++position_;
    int64_t extent = 0;
    if (!absl::SimpleAtoi(text_.substr(begin, position_ - begin), &extent)) {
      position_ = begin;
      return Fail("an extent from 0 to 2^63 - 1");
    }
    header_.shape.push_back(extent);
  }

  // Spaces and one line feed at the very end.
  void ExpectPadding() {
    SkipSpaces();
    if (ok() && text_.substr(position_) != "\n") Fail("spaces and one line feed after the dict");
  }

  absl::string_view text_;
  size_t position_ = 0;
  std::string error_;
  NpyHeader header_;
  bool has_descr_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

int64_t LittleEndian(absl::string_view bytes) {
  int64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i)
    value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

// The size of the length field after the prefix: 2 or 4.
// Errors: InvalidArgument unless `prefix` is that of a known format.
absl::StatusOr<int> NpyLengthBytes(absl::string_view prefix) {
  if (prefix.size() != kNpyPrefixBytes || prefix.substr(0, kNpyMagic.size()) != kNpyMagic) {
    return absl::InvalidArgumentError(absl::StrCat("npy magic: got \"",
                                                   absl::CHexEscape(prefix.substr(0, 8)),
                                                   "\", want \"\\x93NUMPY\" and a version"));
  }
  const int major = static_cast<unsigned char>(prefix[6]);
  const int minor = static_cast<unsigned char>(prefix[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy version: got ", major, ".", minor, ", want 1.0, 2.0 or 3.0"));
  }
  return major == 1 ? 2 : 4;
}

// The number of header bytes in a length field. Errors: InvalidArgument if it exceeds
// kMaxNpyHeaderBytes.
absl::StatusOr<int64_t> NpyHeaderBytes(absl::string_view length_field) {
  const int64_t length = LittleEndian(length_field);
  if (length <= kMaxNpyHeaderBytes) return length;
  return absl::InvalidArgumentError(
      absl::StrCat("npy header length: got ", length, " bytes, want at most ", kMaxNpyHeaderBytes));
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view text) { return Parser(text).Parse(); }

std::string PrintNpyHeader(const NpyHeader& header) {
  std::string dict =
      absl::StrCat("{'descr': '", absl::string_view(&header.byte_order, 1),
                   absl::string_view(&header.kind, 1), header.item_bytes,
                   "', 'fortran_order': ", header.fortran_order ? "True" : "False", ", 'shape': (");
  for (size_t i = 0; i < header.shape.size(); ++i) {
    absl::StrAppend(&dict, i > 0 ? ", " : "", header.shape[i]);
  }
  absl::StrAppend(&dict, header.shape.size() == 1 ? ",), }" : "), }");
  constexpr size_t kLengthBytes = 2;
  constexpr size_t kAlignment = 64;
  const size_t unpadded = kNpyPrefixBytes + kLengthBytes + dict.size() + 1;
  dict.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dict.push_back('\n');
  std::string text(kNpyMagic.data(), kNpyMagic.size());
  text.append({1, 0, static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)});
  return text + dict;
}

namespace {

// An element type that a NumPy type can represent. Writing uses the first row of an element type;
// reading a row with `is_default` needs no hint.
struct NpyTypeRow {
  v1::ElementType type;
  int item_bytes;
  char kind;
  bool is_default;
};

constexpr NpyTypeRow kNpyTypes[] = {
    {v1::ELEMENT_TYPE_F64, 8, 'f', true},   {v1::ELEMENT_TYPE_F32, 4, 'f', true},
    {v1::ELEMENT_TYPE_TF32, 4, 'f', false}, {v1::ELEMENT_TYPE_F16, 2, 'f', true},
    {v1::ELEMENT_TYPE_BF16, 2, 'V', true},  {v1::ELEMENT_TYPE_E4M3, 1, 'V', false},
    {v1::ELEMENT_TYPE_E5M2, 1, 'V', false}, {v1::ELEMENT_TYPE_E3M2, 1, 'V', false},
    {v1::ELEMENT_TYPE_E2M3, 1, 'V', false}, {v1::ELEMENT_TYPE_E2M1, 1, 'V', false},
    {v1::ELEMENT_TYPE_S4, 1, 'V', false},   {v1::ELEMENT_TYPE_U4, 1, 'V', false},
    {v1::ELEMENT_TYPE_E5M2, 1, 'f', true},  {v1::ELEMENT_TYPE_S8, 1, 'i', true},
    {v1::ELEMENT_TYPE_U8, 1, 'u', true},    {v1::ELEMENT_TYPE_S32, 4, 'i', true},
    {v1::ELEMENT_TYPE_B1, 1, 'b', true},    {v1::ELEMENT_TYPE_S4, 1, 'i', false},
    {v1::ELEMENT_TYPE_E4M3, 1, 'u', false}, {v1::ELEMENT_TYPE_E5M2, 1, 'u', false},
    {v1::ELEMENT_TYPE_E3M2, 1, 'u', false}, {v1::ELEMENT_TYPE_E2M3, 1, 'u', false},
    {v1::ELEMENT_TYPE_E2M1, 1, 'u', false}, {v1::ELEMENT_TYPE_U4, 1, 'u', false},
    {v1::ELEMENT_TYPE_B1, 1, 'u', false},   {v1::ELEMENT_TYPE_F16, 2, 'u', false},
    {v1::ELEMENT_TYPE_BF16, 2, 'u', false},
};

std::string Descr(char kind, int item_bytes) {
  return absl::StrCat("'", item_bytes == 1 ? "|" : "<", absl::string_view(&kind, 1), item_bytes,
                      "'");
}

// Whether a byte of a file is a valid element of a type narrower than a byte: the upper bits are
// zero or, for s4, may repeat the sign.
bool IsValue(v1::ElementType type, uint8_t byte) {
  if (type == v1::ELEMENT_TYPE_S4 && byte >= 0xf8) return true;
  return byte < 1 << ElementBits(type);
}

// The element type of a file's elements.
// Errors: InvalidArgument if the file's type fits no element type, contradicts the hint, or is
// ambiguous without a hint.
absl::StatusOr<v1::ElementType> TypeOfNpy(const NpyHeader& header, v1::ElementType hint) {
  std::vector<absl::string_view> possible;
  std::vector<std::string> of_hint;
  absl::string_view of_file;  // The file's default type without a hint.
  for (const NpyTypeRow& row : kNpyTypes) {
    const bool is_of_file = row.kind == header.kind && row.item_bytes == header.item_bytes;
    if (is_of_file &&
        (row.type == hint || (hint == v1::ELEMENT_TYPE_UNSPECIFIED && row.is_default))) {
      return row.type;
    }
    if (is_of_file && row.is_default) of_file = ElementTypeName(row.type);
    if (is_of_file) possible.push_back(ElementTypeName(row.type));
    if (row.type == hint) of_hint.push_back(Descr(row.kind, row.item_bytes));
  }
  const std::string got =
      absl::StrCat("npy descr: got ", Descr(header.kind, header.item_bytes), ", ");
  if (hint != v1::ELEMENT_TYPE_UNSPECIFIED) {
    const std::string advice =
        of_file.empty() ? ""
                        : absl::StrCat(" (the file is of ", of_file, ": gemmctl convert --type ",
                                       ElementTypeName(hint), " makes another one)");
    return absl::InvalidArgumentError(absl::StrCat(got, "want ", absl::StrJoin(of_hint, " or "),
                                                   " for type ", ElementTypeName(hint), advice));
  }
  if (possible.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(got, "want f8, f4, f2, i4, i1, u1, b1 or an ml_dtypes type"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(got, "which may be ", absl::StrJoin(possible, ", "), ": want its type named"));
}

// The NumPy type (byte order, kind, item_bytes) that files of `type` are written with.
NpyHeader NpyHeaderFor(v1::ElementType type) {
  NpyHeader header;
  for (const NpyTypeRow& row : kNpyTypes) {
    if (row.type != type) continue;
    header.kind = row.kind;
    header.item_bytes = row.item_bytes;
    header.byte_order = row.item_bytes == 1 ? '|' : '<';
    break;
  }
  return header;
}

}  // namespace

absl::StatusOr<std::string> PackLines(v1::ElementType type, absl::string_view bytes,
                                      int64_t line_length) {
  const int bits = ElementBits(type);
  const size_t length = static_cast<size_t>(line_length);
  if (length == 0) return std::string();
  const size_t line_bytes = (length * static_cast<size_t>(bits) + 7) / 8;
  std::string packed(bytes.size() / length * line_bytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    if (!IsValue(type, byte)) {
      return absl::InvalidArgumentError(
          absl::StrCat("npy element ", i, ": got byte ", static_cast<int>(byte),
                       ", want a value of type ", ElementTypeName(type)));
    }
    StoreElement(type, byte & ((1u << bits) - 1), static_cast<int64_t>(i % length),
                 packed.data() + i / length * line_bytes);
  }
  return packed;
}

std::string UnpackLines(v1::ElementType type, absl::string_view packed, int64_t line_length,
                        int64_t count) {
  const size_t bits = static_cast<size_t>(ElementBits(type));
  const size_t length = static_cast<size_t>(line_length);
  const size_t line_bytes = (length * bits + 7) / 8;
  std::string bytes;
  bytes.reserve(length * static_cast<size_t>(count));
  for (size_t line = 0; line < static_cast<size_t>(count); ++line) {
    const absl::string_view source = packed.substr(line * line_bytes, line_bytes);
    for (int64_t i = 0; i < line_length; ++i) {
      bytes.push_back(static_cast<char>(LoadElement(type, source, i)));
    }
  }
  return bytes;
}

namespace {

// Reverses the bytes of each item.
void SwapBytes(int item_bytes, std::string& items) {
  const auto size = static_cast<std::string::difference_type>(item_bytes);
  for (auto item = items.begin(); item != items.end(); item += size)
    std::reverse(item, item + size);
}

// Copies items into C order (the last extent fastest, no gaps). Extents and strides are in items.
std::string ToCOrder(absl::string_view items, int item_bytes, const int64_t (&extents)[3],
                     const int64_t (&strides)[3]) {
  std::string ordered(items.size(), '\0');
  const size_t bytes = static_cast<size_t>(item_bytes);
  char* target = ordered.data();
  for (int64_t i = 0; i < extents[0]; ++i) {
    for (int64_t j = 0; j < extents[1]; ++j) {
      for (int64_t l = 0; l < extents[2]; ++l, target += bytes) {
        const int64_t index = i * strides[0] + j * strides[1] + l * strides[2];
        std::memcpy(target, items.data() + static_cast<size_t>(index) * bytes, bytes);
      }
    }
  }
  return ordered;
}

// Bytes between the position and the end of a regular file; nullopt for pipes and other streams.
std::optional<int64_t> RemainingBytes(std::FILE* file) {
  struct stat facts = {};
  const int descriptor = fileno(file);
  if (descriptor < 0 || fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode))
    return std::nullopt;
  const off_t position = ftello(file);
  if (position < 0) return std::nullopt;
  return std::max<int64_t>(0, facts.st_size - position);
}

absl::Status TooShort(absl::string_view what, int64_t got, int64_t want) {
  return absl::InvalidArgumentError(
      absl::StrCat("npy ", what, ": got ", got, " bytes, want ", want));
}

// Reads `count` bytes. Allocates memory only as the stream delivers, whatever `count` claims.
absl::StatusOr<std::string> ReadBytes(std::FILE* file, int64_t count, absl::string_view what) {
  constexpr int64_t kChunkBytes = int64_t{1} << 20;
  const std::optional<int64_t> remaining = RemainingBytes(file);
  if (remaining.has_value() && *remaining < count) return TooShort(what, *remaining, count);
  std::string bytes;
  if (remaining.has_value()) bytes.reserve(static_cast<size_t>(count));
  while (static_cast<int64_t>(bytes.size()) < count) {
    const size_t old_size = bytes.size();
    const size_t wanted =
        static_cast<size_t>(std::min(kChunkBytes, count - static_cast<int64_t>(old_size)));
    bytes.resize(old_size + wanted);
    const size_t got = std::fread(bytes.data() + old_size, 1, wanted, file);
    if (got < wanted) return TooShort(what, static_cast<int64_t>(old_size + got), count);
  }
  return bytes;
}

absl::StatusOr<NpyHeader> ReadHeader(std::FILE* file) {
  ASSIGN_OR_RETURN(const auto prefix, ReadBytes(file, kNpyPrefixBytes, "magic"));
  ASSIGN_OR_RETURN(const auto length_bytes, NpyLengthBytes(prefix));
  ASSIGN_OR_RETURN(const auto length_field, ReadBytes(file, length_bytes, "header length"));
  ASSIGN_OR_RETURN(const auto length, NpyHeaderBytes(length_field));
  ASSIGN_OR_RETURN(const auto text, ReadBytes(file, length, "header"));
  return ParseNpyHeader(text);
}

// Bytes of the items; also checks the number of dimensions.
absl::StatusOr<int64_t> DataBytes(const NpyHeader& header) {
  if (header.shape.empty()) {
    return absl::InvalidArgumentError("npy shape: got 0 dimensions, want 1 to 3");
  }
  if (std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end()) return 0;
  int64_t bytes = header.item_bytes;
  for (int64_t extent : header.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::InvalidArgumentError("npy shape: got a size of 2^63 bytes or more, want less");
    }
  }
  return bytes;
}

// The length of a line and the number of lines of an array.
std::pair<int64_t, int64_t> LinesOf(const NpyArray& array) {
  const PackedMatrix matrix = PackedArray(array, "");
  const bool by_columns = matrix.order == v1::ORDER_COLUMN_MAJOR;
  const bool is_empty = matrix.rows == 0 || matrix.columns == 0;
  return {by_columns ? matrix.rows : matrix.columns,
          is_empty ? 0 : matrix.batch * (by_columns ? matrix.columns : matrix.rows)};
}

// Brings the file's items into the wire's order: 1-D and 2-D arrays stay unchanged, a batch becomes
// C order.
void Arrange(const NpyHeader& header, std::string& items, NpyArray& array) {
  if (!header.fortran_order || header.shape.size() < 2) return;
  if (header.shape.size() == 2) {
    array.order = v1::ORDER_COLUMN_MAJOR;
    return;
  }
  const int64_t batch = header.shape[0];
  const int64_t rows = header.shape[1];
  const int64_t columns = header.shape[2];
  if (items.empty()) return;
  items = ToCOrder(items, header.item_bytes, {batch, rows, columns}, {1, batch, batch * rows});
}

// The content of a file of the array.
struct NpyText {
  std::string header;
  std::string rewritten;  // The items, if they differ from the array's bytes.
  absl::string_view items;
};

// Borrows the array.
void Print(const NpyArray& array, NpyText& text) {
  text.header = NpyHeaderText(array);
  text.items = array.data;
  const auto [length, count] = LinesOf(array);
  if (ElementBits(array.type) < 8) {
    text.rewritten = UnpackLines(array.type, array.data, length, count);
    text.items = text.rewritten;
  }
  if (array.order == v1::ORDER_COLUMN_MAJOR && array.shape.size() == 3) {
    const int64_t rows = array.shape[1];
    const int64_t columns = array.shape[2];
    text.rewritten = ToCOrder(text.items, NpyHeaderFor(array.type).item_bytes,
                              {array.shape[0], rows, columns}, {rows * columns, 1, rows});
    text.items = text.rewritten;
  }
}

}  // namespace

absl::StatusOr<NpyArray> ReadNpy(std::FILE* file, v1::ElementType hint, v1::ElementType unnamed) {
  ASSIGN_OR_RETURN(const auto header, ReadHeader(file));
  auto type = TypeOfNpy(header, hint);
  if (!type.ok() && unnamed != v1::ELEMENT_TYPE_UNSPECIFIED) type = TypeOfNpy(header, unnamed);
  if (!type.ok()) return type.status();
  ASSIGN_OR_RETURN(const auto bytes, DataBytes(header));
  ASSIGN_OR_RETURN(auto items, ReadBytes(file, bytes, "data"));
  if (header.byte_order == '>') SwapBytes(header.item_bytes, items);
  NpyArray array;
  array.type = *type;
  array.shape = header.shape;
  Arrange(header, items, array);
  if (ElementBits(*type) >= 8) {
    array.data = std::move(items);
    return array;
  }
  ASSIGN_OR_RETURN(array.data, PackLines(*type, items, LinesOf(array).first));
  return array;
}

absl::Status ExpectEndOfFile(std::FILE* file) {
  if (std::fgetc(file) == EOF) return absl::OkStatus();
  return absl::InvalidArgumentError("npy file: got bytes after the data, want its end");
}

namespace {

// Opens a file to read. Errors: NotFound or Internal, with the path.
absl::StatusOr<std::unique_ptr<std::FILE, FileCloser>> OpenNpy(const std::string& path) {
  std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file != nullptr) return file;
  const int error = errno;
  const std::string message =
      absl::StrCat(path, ": cannot be read: ", std::generic_category().message(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InternalError(message);
}

}  // namespace

absl::StatusOr<NpyArray> ReadNpyFile(const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed) {
  ASSIGN_OR_RETURN(const auto file, OpenNpy(path));
  return ReadNpyFile(file.get(), path, hint, unnamed);
}

absl::StatusOr<NpyArray> ReadNpyFile(std::FILE* file, const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed) {
  auto array = ReadNpy(file, hint, unnamed);
  const absl::Status status = array.ok() ? ExpectEndOfFile(file) : array.status();
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  return array;
}

absl::Status WriteNpy(const NpyArray& array, std::FILE* file) {
  NpyText text;
  Print(array, text);
  const bool is_written =
      std::fwrite(text.header.data(), 1, text.header.size(), file) == text.header.size() &&
      std::fwrite(text.items.data(), 1, text.items.size(), file) == text.items.size() &&
      std::fflush(file) == 0;
  if (!is_written)
    return absl::InternalError(
        absl::StrCat("npy file: cannot be written: ", std::generic_category().message(errno)));
  return absl::OkStatus();
}

absl::Status WriteNpyFile(const NpyArray& array, const std::string& path) {
  NpyText text;
  Print(array, text);
  OutputFile file;
  absl::Status status =
      file.Open(path, static_cast<int64_t>(text.header.size() + text.items.size()));
  if (status.ok()) status = file.Write(text.header);
  if (status.ok()) status = file.Write(text.items);
  return status.ok() ? file.Commit() : status;
}

void FileUnmapper::operator()(std::byte* memory) const { munmap(memory, bytes); }

std::span<const std::byte> MappedNpy::data() const {
  if (mapping_ == nullptr) return std::as_bytes(std::span(array_.data));
  return std::span<const std::byte>(mapping_.get(), mapping_.get_deleter().bytes).subspan(first_);
}

MappedFile MapFile(int descriptor) {
  struct stat facts = {};
  if (fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size <= 0) {
    return nullptr;
  }
  const size_t bytes = static_cast<size_t>(facts.st_size);
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return MappedFile(static_cast<std::byte*>(memory), FileUnmapper{bytes});
}

absl::StatusOr<MappedNpy> MappedNpy::Open(const std::string& path, v1::ElementType hint) {
  MappedNpy npy;
  ASSIGN_OR_RETURN(const auto file, OpenNpy(path));
  npy.mapping_ = MapFile(fileno(file.get()));
  if (npy.mapping_ != nullptr) {
    const auto header = ReadHeader(file.get());
    npy.first_ = static_cast<size_t>(ftello(file.get()));
    const auto data_bytes = static_cast<int64_t>(npy.mapping_.get_deleter().bytes - npy.first_);
    const auto type = header.ok() ? TypeOfNpy(*header, hint) : header.status();
    const bool is_batch = header.ok() && header->shape.size() == 3;
    const bool is_plain = type.ok() && ElementBits(*type) >= 8 && header->byte_order != '>' &&
                          !(header->fortran_order && is_batch) &&
                          DataBytes(*header).value_or(-1) == data_bytes;
    if (is_plain) {
      npy.array_.type = *type;
      npy.array_.shape = header->shape;
      const bool by_columns = header->fortran_order && header->shape.size() == 2;
      npy.array_.order = by_columns ? v1::ORDER_COLUMN_MAJOR : v1::ORDER_ROW_MAJOR;
      return npy;
    }
    npy.mapping_ = nullptr;
    std::rewind(file.get());
  }
  ASSIGN_OR_RETURN(npy.array_, ReadNpyFile(file.get(), path, hint));
  return npy;
}

std::string NpyHeaderText(const NpyArray& array) {
  NpyHeader header = NpyHeaderFor(array.type);
  header.shape = array.shape;
  header.fortran_order = array.order == v1::ORDER_COLUMN_MAJOR && array.shape.size() == 2;
  return PrintNpyHeader(header);
}

}  // namespace gemmd
