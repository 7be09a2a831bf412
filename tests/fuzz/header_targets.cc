// SPDX-License-Identifier: Apache-2.0
//
// What peers send besides requests: traceparent, the HTTP requests for metrics, and the frames and
// headers of each connection.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/metrics/http.h"
#include "server/product/spans.h"
#include "server/wire/frame_meter.h"
#include "server/wire/header_paths.h"
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

// Takes the next piece of an input. Two bytes, big-endian, come before each: a bit for any use, and
// its length in the other fifteen.
struct PieceOfInput {
  bool bit = false;
  std::span<const uint8_t> bytes;
};
PieceOfInput TakePiece(std::string_view& input) {
  const size_t head = std::min(input.size(), size_t{2});
  size_t number = 0;
  for (size_t i = 0; i < head; ++i) number = number << 8 | static_cast<uint8_t>(input[i]);
  input.remove_prefix(head);
  const size_t size = std::min<size_t>(number & 0x7fff, input.size());
  PieceOfInput piece = {.bit = (number & 0x8000) != 0,
                        .bytes = {reinterpret_cast<const uint8_t*>(input.data()), size}};
  input.remove_prefix(size);
  return piece;
}
std::string AsPiece(std::string_view bytes, bool bit = false) {
  const size_t number = bytes.size() | (bit ? 0x8000 : 0);
  return std::string({static_cast<char>(number >> 8), static_cast<char>(number)}) +
         std::string(bytes);
}

// Pieces that the peer sends, and that it is sent (the bit): as they are, and cut anywhere.
void RunFrames(std::string_view input) {
  constexpr size_t kMaxCalls = 20;
  Choices choices(input);
  const auto questions = std::make_shared<QuestionBytes>(QuestionBytes::kMaxBytesOfPeer, nullptr);
  {
    FrameMeter whole(std::make_shared<TokenBucket>(), questions, kMaxCalls);
    FrameMeter cut(std::make_shared<TokenBucket>(),
                   std::make_shared<QuestionBytes>(QuestionBytes::kMaxBytesOfPeer, nullptr),
                   kMaxCalls);
    FrameFault before = FrameFault::kNone;
    while (!input.empty()) {
      auto [is_sent, bytes] = TakePiece(input);
      if (is_sent) {
        whole.Send(bytes, 0);
      } else {
        Demand(whole.Receive(bytes, 0) == whole.fault(), "a fault is not told");
      }
      if (!is_sent) cut.Receive({}, 0);
      while (!bytes.empty()) {
        const size_t size = 1 + choices.Below(bytes.size());
        is_sent ? cut.Send(bytes.first(size), 0) : void(cut.ReceiveMore(bytes.first(size)));
        bytes = bytes.subspan(size);
      }
      Demand(before == FrameFault::kNone || whole.fault() == before, "a fault changes");
      before = whole.fault();
      Demand(!NameOf(before).empty(), "a fault has no name");
      Demand(whole.fault() == cut.fault(), "a fault depends on the cuts");
      Demand(whole.unfinished_bytes() >= 0 && whole.data_bytes() >= 0, "fewer bytes than none");
      if (before != FrameFault::kNone) continue;
      Demand(whole.unfinished_bytes() == cut.unfinished_bytes() &&
                 whole.data_bytes() == cut.data_bytes() && whole.may_send() == cut.may_send(),
             "counts depend on the cuts");
    }
  }
  for (const MessageKind kind : {MessageKind::kQuestion, MessageKind::kOpenQuestion}) {
    Demand(questions->bytes(kind) == 0, "questions of a connection that ended are counted");
  }
}

// Pieces are the blocks of headers of one connection.
void RunPaths(std::string_view input) {
  HeaderPaths paths;
  bool is_lost = false;
  while (!input.empty()) {
    const std::span<const uint8_t> block = TakePiece(input).bytes;
    HeaderPaths again = paths;
    const std::optional<std::string_view> path = paths.Read(block);
    Demand(again.Read(block) == path, "a block has two paths");
    Demand(!is_lost || !path, "what was no headers is again");
    Demand(!path || path->size() <= HeaderPaths::kMaxPathBytes, "a path is long");
    is_lost = !path;
  }
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

std::string Frame(char type, char flags, char stream, std::string_view payload) {
  return std::string({'\0', static_cast<char>(payload.size() >> 8),
                      static_cast<char>(payload.size()), type, flags, '\0', '\0', '\0', stream}) +
         std::string(payload);
}

// A call of Multiply, a health check, and what a server sends for them.
std::vector<std::string> FrameSeeds() {
  constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  constexpr char kEndHeaders = 4;
  const std::string first = std::string(kPreface) + Frame(4, 0, 0, "") +
                            Frame(1, kEndHeaders, 1, "\x44\x17/gemmd.v1.Gemm/Multiply") +
                            Frame(0, 1, 1, std::string("\0\0\0\0\3abc", 8));
  const std::string second =
      Frame(1, 0, 3, "\x44\x1c/grpc.health.v1.Health/Check") + Frame(9, kEndHeaders, 3, "\x83") +
      Frame(0, 0, 3, std::string("\0\0\1\0\0", 5)) + Frame(0, 0, 3, std::string(8, 'x')) +
      Frame(3, 0, 3, std::string("\0\0\0\x08", 4));
  const std::string sent =
      Frame(4, 0, 0, std::string("\0\4\0\1\0\0", 6)) + Frame(8, 0, 1, std::string("\0\0\1\0", 4)) +
      Frame(1, kEndHeaders | 1, 1, "\x88") + Frame(7, 0, 0, std::string("\0\0\0\3\0\0\0\0", 8));
  return {AsPiece(first) + AsPiece(sent, true) + AsPiece(second), AsPiece(first + second)};
}

// The first examples of RFC 7541, C.4, and a path that is kept and named again.
std::vector<std::string> PathSeeds() {
  return {
      AsPiece("\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff") +
          AsPiece("\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf"),
      AsPiece("\x44\x17/gemmd.v1.Gemm/Multiply") + AsPiece("\xbe") + AsPiece("\x3f\xe1\x1f\xbe")};
}

}  // namespace

std::vector<Target> HeaderTargets() {
  return {{"traceparent", RunTraceparent, TraceSeeds},
          {"http", RunHttp, HttpSeeds},
          {"frames", RunFrames, FrameSeeds},
          {"paths", RunPaths, PathSeeds}};
}

}  // namespace gemmd::fuzz
