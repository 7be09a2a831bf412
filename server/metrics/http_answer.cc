// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_answer.h"

#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kPlainText = "text/plain; charset=utf-8";
constexpr std::string_view kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";

struct RequestLine {
  std::string_view method;
  std::string_view path;  // Without a query.
};

// Gives "/metrics" for "http://host:port/metrics" too, which a server must take (RFC 9112, 3.2.2).
std::string_view WithoutAuthority(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (!target.starts_with(kScheme)) return target;
  const size_t path = target.find('/', kScheme.size());
  return path == target.npos ? "/" : target.substr(path);
}

// Parses a line such as "GET /metrics?x=y HTTP/1.1"; gives nothing for anything else.
std::optional<RequestLine> ParseRequestLine(std::string_view head) {
  const std::string_view line = head.substr(0, head.find(kLineEnd));
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == line.npos || target_end <= method_end) return std::nullopt;
  const std::string_view target =
      WithoutAuthority(line.substr(method_end + 1, target_end - method_end - 1));
  const std::string_view version = line.substr(target_end + 1);
  if (!target.starts_with('/') || target.find(' ') != target.npos ||
      (version != "HTTP/1.1" && version != "HTTP/1.0")) {
    return std::nullopt;
  }
  return RequestLine{line.substr(0, method_end), target.substr(0, target.find('?'))};
}

std::string Whole(std::string_view status, std::string_view type, std::string_view more,
                  std::string_view body, bool is_head_only) {
  return Concat("HTTP/1.1 ", status, kLineEnd, "Content-Type: ", type, kLineEnd,
                "Content-Length: ", body.size(), kLineEnd, "Connection: close", kLineEnd, more,
                kLineEnd, is_head_only ? "" : body);
}

std::string Refuse(std::string_view status, std::string_view more = "", bool is_head_only = false) {
  return Whole(status, kPlainText, more, Concat(status, "\n"), is_head_only);
}

}  // namespace

bool IsWholeHead(std::string_view received) {
  return received.size() > kMostHeadBytes || received.find(kHeadEnd) != received.npos;
}

std::string AnswerTo(std::string_view head, const PageMaker& make_page) {
  if (head.size() > kMostHeadBytes) return Refuse("431 Request Header Fields Too Large");
  const std::optional<RequestLine> line = ParseRequestLine(head);
  if (!line) return Refuse("400 Bad Request");
  const bool is_head_only = line->method == "HEAD";
  if (!is_head_only && line->method != "GET") {
    return Refuse("405 Method Not Allowed", Concat("Allow: GET, HEAD", kLineEnd));
  }
  const std::optional<Page> page = make_page(line->path);
  if (!page) return Refuse("404 Not Found", "", is_head_only);
  return Whole(page->is_available ? "200 OK" : "503 Service Unavailable", kPrometheusText, "",
               page->body, is_head_only);
}

}  // namespace gemmd
