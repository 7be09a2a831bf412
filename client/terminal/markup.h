// SPDX-License-Identifier: Apache-2.0
//
// Text inside of HTML and SVG.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gemmd {

// The text as an element's content or a quoted attribute's value. Control characters but tabs and
// line feeds, which XML cannot have, become question marks.
std::string EscapedMarkup(absl::string_view text);

}  // namespace gemmd
