// SPDX-License-Identifier: Apache-2.0
//
// Text that peers send besides requests: traceparent, and the HTTP requests for metrics.
#include <optional>
#include <string>
#include <vector>

#include "server/metrics/http.h"
#include "server/product/spans.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

void RunTraceparent(std::string_view input) {
  const std::optional<TraceSpan> span = ContinueTrace(input);
  if (!span) return;
  Demand(input.size() >= 55 && span->trace_id == input.substr(3, 32) &&
             span->parent_id == input.substr(36, 16),
         "a span is of another trace");
  const std::string told = span->traceparent();
  if (const std::optional<TraceSpan> first = StartTrace(); first && Choices(input).OnceIn(16)) {
    const auto second = ContinueTrace(first->traceparent());
    Demand(second && second->trace_id == first->trace_id && second->trace_id != span->trace_id,
           "a trace that begins here is not continued");
  }
  const std::optional<TraceSpan> next = ContinueTrace(told);
  Demand(next.has_value(), "the daemon's own traceparent is refused");
  Demand(next->trace_id == span->trace_id && next->parent_id == span->span_id &&
             next->is_sampled == span->is_sampled && next->span_id != span->span_id,
         "a span continues another one");
}

void RunHttp(std::string_view input) {
  // The listener may look at any moment, so each prefix may be all that has arrived.
  std::string_view head = input;
  for (size_t size = 0; size <= input.size(); ++size) {
    if (!IsWholeHead(input.substr(0, size))) continue;
    head = input.substr(0, size);
    break;
  }
  Demand(IsWholeHead(input) == (head.size() < input.size() || IsWholeHead(head)),
         "a head is whole and then is not");
  std::string asked;
  const std::string answer = AnswerTo(head, [&asked](std::string_view path) {
    asked = path;
    return path == "/metrics" ? std::optional<Page>(Page{.body = "page\n"}) : std::nullopt;
  });
  Demand(answer.starts_with("HTTP/1.1 ") && answer.find("\r\n\r\n") != answer.npos,
         "an answer is no HTTP");
  Demand(asked.empty() || asked[0] == '/', "a page without a path is asked for");
  const bool is_ok = answer.starts_with("HTTP/1.1 200 ");
  Demand(is_ok == (asked == "/metrics"), "an answer is OK for another page");
  // An answer repeats nothing that the peer sent, so no peer can forge parts of it.
  Demand(answer.size() < 400, "an answer is long");
  (void)CheckHttpAddress(input);
}

std::vector<std::string> TraceSeeds() {
  return {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
          "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more",
          "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"};
}

std::vector<std::string> HttpSeeds() {
  return {"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
          "HEAD /metrics?x=y HTTP/1.0\r\n\r\n",
          "GET http://host:80/metrics HTTP/1.1\r\n\r\n",
          "POST / HTTP/1.1\r\n\r\n",
          "127.0.0.1:8471",
          "[::1]:0"};
}

}  // namespace

std::vector<Target> HeaderTargets() {
  return {{"traceparent", RunTraceparent, TraceSeeds}, {"http", RunHttp, HttpSeeds}};
}

}  // namespace gemmd::fuzz
