// SPDX-License-Identifier: Apache-2.0
//
// As much of HTTP/1.1 as a scraper needs: GET and HEAD of a path, one request for each connection.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gemmd {

struct Page {
  std::string body;
  bool is_available = true;  // Otherwise the answer is 503 Service Unavailable.
};

// Gives the page at a path, or nothing where there is none.
using PageMaker = std::function<std::optional<Page>(std::string_view path)>;

// A longer head of a request is refused.
inline constexpr size_t kMostHeadBytes = 8192;

// Whether `received` has all that AnswerTo needs: a whole head, or a head that is too long.
bool IsWholeHead(std::string_view received);

// The whole answer, head and body, to a request's head. The page is made only for a good request.
std::string AnswerTo(std::string_view head, const PageMaker& make_page);

}  // namespace gemmd
