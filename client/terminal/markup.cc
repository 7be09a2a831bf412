// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/markup.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"

namespace gemmd {

std::string EscapedMarkup(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
  const auto is_refused = [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\t' && c != '\n';
  };
  std::replace_if(escaped.begin(), escaped.end(), is_refused, '?');
  return escaped;
}

}  // namespace gemmd
