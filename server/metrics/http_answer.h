// SPDX-License-Identifier: Apache-2.0
//
// As much of HTTP/1.1 as a scraper needs: GET and HEAD of a path, one request to a connection.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gemmd {

// The body of the page at a path; nothing where there is none.
using PageMaker = std::function<std::optional<std::string>(std::string_view path)>;

// Longer heads are refused.
inline constexpr size_t kMostHeadBytes = 8192;

// Whether `received` has all that AnswerTo needs: a whole head, or too much of one.
bool IsWholeHead(std::string_view received);

// The whole answer, head and body, to a request's head. The page is made only for a good request.
std::string AnswerTo(std::string_view head, const PageMaker& make_page);

}  // namespace gemmd
