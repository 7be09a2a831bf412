// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/npy_header.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gemmd {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);

// Reads the header from left to right. A function that fails leaves `error_` set; the first one
// counts.
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
      if (header_.shape.size() == kMostNpyDimensions) {
        return Fail(absl::StrCat("at most ", kMostNpyDimensions, " dimensions"));
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

}  // namespace

absl::StatusOr<int> NpyLengthBytes(absl::string_view prefix) {
  if (prefix.size() != kNpyPrefixBytes || prefix.substr(0, kMagic.size()) != kMagic) {
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

absl::StatusOr<int64_t> NpyHeaderBytes(absl::string_view length_field) {
  const int64_t length = LittleEndian(length_field);
  if (length <= kMostNpyHeaderBytes) return length;
  return absl::InvalidArgumentError(absl::StrCat("npy header length: got ", length,
                                                 " bytes, want at most ", kMostNpyHeaderBytes));
}

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
  std::string text(kMagic.data(), kMagic.size());
  text.append({1, 0, static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)});
  return text + dict;
}

}  // namespace gemmd
