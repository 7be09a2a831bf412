// SPDX-License-Identifier: Apache-2.0
#include "server/system/log_line.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

// Takes digits off the front; false where there is none.
bool TakeDigits(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(end);
  return end > 0;
}

bool TakeOne(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == any_of.npos) return false;
  text.remove_prefix(1);
  return true;
}

// The length of a quoted value with both quotes; nothing where the second is missing.
std::optional<size_t> QuotedLength(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return std::nullopt;
}

// Takes one pair and the space after it; false where there is none.
bool TakeField(std::string_view& pairs, std::vector<LogField>& fields) {
  const size_t equals = pairs.find('=');
  if (equals == pairs.npos || equals == 0) return false;
  LogField field{.key = pairs.substr(0, equals), .value = "", .is_number = false};
  const bool is_word = std::all_of(field.key.begin(), field.key.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
  if (!is_word) return false;
  pairs.remove_prefix(equals + 1);
  const bool is_quoted = pairs.starts_with('"');
  const std::optional<size_t> length =
      is_quoted ? QuotedLength(pairs) : std::min(pairs.find(' '), pairs.size());
  if (!length) return false;
  const std::string_view value = pairs.substr(0, *length);
  pairs.remove_prefix(*length);
  if (is_quoted) {
    const std::string_view inner = value.substr(1, value.size() - 2);
    if (!absl::CUnescape({inner.data(), inner.size()}, &field.value)) return false;
  } else {
    field.value = value;
    field.is_number = IsNumber(value);
  }
  fields.push_back(std::move(field));
  return pairs.empty() || TakeOne(pairs, " ");
}

// The length of the character of UTF-8 at the front; 0 where what is there is none. Overlong forms
// and surrogates are none (RFC 3629).
size_t CharacterLength(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i, int least = 0x80, int most = 0xBF) {
    return i < text.size() && byte(i) >= least && byte(i) <= most;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const int least = first == 0xE0 ? 0xA0 : 0x80;
    const int most = first == 0xED ? 0x9F : 0xBF;
    return follows(1, least, most) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const int least = first == 0xF0 ? 0x90 : 0x80;
    const int most = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, least, most) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void AppendJsonString(std::string_view text, std::string& json) {
  json += '"';
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (length == 0) {
      json += "\xEF\xBF\xBD";  // U+FFFD
    } else if (first == '"' || first == '\\') {
      json.append({'\\', text.front()});
    } else if (first < 0x20 || first == 0x7F) {
      absl::StrAppend(&json, "\\u", absl::Hex(first, absl::kZeroPad4));
    } else {
      json.append(text.substr(0, length));
    }
    text.remove_prefix(std::max(length, size_t{1}));
  }
  json += '"';
}

}  // namespace

bool IsNumber(std::string_view text) {
  TakeOne(text, "-");
  const bool is_zero_first = text.starts_with('0');
  const size_t before = text.size();
  if (!TakeDigits(text) || (is_zero_first && before - text.size() > 1)) return false;
  if (TakeOne(text, ".") && !TakeDigits(text)) return false;
  if (TakeOne(text, "eE")) {
    TakeOne(text, "+-");
    if (!TakeDigits(text)) return false;
  }
  return text.empty();
}

std::vector<LogField> FieldsOf(std::string_view pairs) {
  std::vector<LogField> fields;
  std::string_view rest = pairs;
  while (!rest.empty()) {
    if (!TakeField(rest, fields)) return {{"message", std::string(pairs), false}};
  }
  return fields;
}

std::string_view ValueOf(const std::vector<LogField>& fields, std::string_view key) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [key](const LogField& field) { return field.key == key; });
  return found == fields.end() ? "" : std::string_view(found->value);
}

std::string FormatLine(LogFormat format, absl::Time time, std::string_view level,
                       std::string_view pairs) {
  const std::string when = absl::FormatTime("%Y-%m-%dT%H:%M:%E6S%Ez", time, absl::LocalTimeZone());
  if (format == LogFormat::kText) {
    std::string line = absl::StrCat("time=", when, " level=");
    line.append(level).append(" ").append(pairs).append("\n");
    return line;
  }
  std::string line = absl::StrCat("{\"time\":\"", when, "\",\"level\":");
  AppendJsonString(level, line);
  for (const LogField& field : FieldsOf(pairs)) {
    line += ',';
    AppendJsonString(field.key, line);
    line += ':';
    if (field.is_number) {
      line += field.value;
    } else {
      AppendJsonString(field.value, line);
    }
  }
  return line + "}\n";
}

}  // namespace gemmd
