// SPDX-License-Identifier: Apache-2.0
#include "server/system/log.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/system/log_line.h"

namespace gemmd {

std::string LogValue(std::string_view value) {
  const bool is_word = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '=' && c != '\\';
  });
  if (is_word && !IsNumber(value)) return std::string(value);
  return absl::StrCat("\"", absl::Utf8SafeCEscape(std::string(value)), "\"");
}

}  // namespace gemmd
