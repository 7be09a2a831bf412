// SPDX-License-Identifier: Apache-2.0
#include "server/wire/frame_meter.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace gemmd {

namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// RFC 9113, 6.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kRstStream = 3,
  kSettings = 4,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr uint8_t kPadded = 8;
constexpr uint8_t kPriority = 0x20;
constexpr size_t kPriorityBytes = 5;
constexpr int kInitialWindowSize = 4;

// Memory for headers that stays between calls: almost all are shorter.
constexpr size_t kKeptHeaderBytes = size_t{8} << 10;

// A reader that is busy with a flood of resets comes to the socket more often than this.
constexpr int64_t kMinStallNs = 100'000'000;

// The flags, which gRPC ignores here, and the length.
constexpr int kMessageHeadBytes = 5;

uint32_t ReadBytes(std::span<const uint8_t> bytes) {
  uint32_t value = 0;
  for (const uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

}  // namespace

std::string_view NameOf(FrameFault fault) {
  switch (fault) {
    case FrameFault::kNone: return "none";
    case FrameFault::kTinyFrames: return "tiny frames";
    case FrameFault::kLongHeaders: return "long headers";
    case FrameFault::kManyStreams: return "too many calls";
    case FrameFault::kManyResets: return "too many resets";
    case FrameFault::kBadHeaders: return "headers that are not HPACK";
    case FrameFault::kLongQuestions: return "long questions";
  }
  return "";
}

void FrameSplitter::ReadHead() {
  const std::span<const uint8_t> head(head_);
  frame_ = {.length = ReadBytes(head.first(3)),
            .type = head[3],
            .flags = head[4],
            .stream = ReadBytes(head.subspan(5)) & 0x7fffffffu};
  left_ = frame_.length;
}

FrameFault FrameMeter::Receive(std::span<const uint8_t> bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  const int64_t gap_ns = received_ns_ < 0 ? 0 : now_ns - received_ns_;
  gap_ns_ = gap_ns < kMinStallNs ? 0 : gap_ns;
  received_ns_ = now_ns;
  return ReceiveMore(bytes);
}

FrameFault FrameMeter::ReceiveMore(std::span<const uint8_t> bytes) {
  while (preface_ < kPreface.size() && is_http2_ && !bytes.empty()) {
    is_http2_ = bytes.front() == static_cast<uint8_t>(kPreface[preface_++]);
    bytes = bytes.subspan(1);
  }
  // gRPC closes a connection that does not begin so, and looks no further once there is a fault.
  if (!is_http2_ || fault_ != FrameFault::kNone) return fault_;
  received_.Split(
      bytes, [this](const Frame& frame) { Begin(frame); },
      [this](const Frame& frame, std::span<const uint8_t> part) { Payload(frame, part); },
      [this](const Frame& frame) { End(frame); });
  return fault_;
}

void FrameMeter::Begin(const Frame& frame) {
  if (fault_ != FrameFault::kNone) return;
  switch (frame.type) {
    case kData: {
      const auto found = streams_.find(frame.stream);
      if (found == streams_.end()) return;
      Stream& stream = found->second;
      if (frame.length == 0 && (frame.flags & kEndStream) == 0) ++spare_frames_;
      if (frame.length == 0) return;
      debt_bytes_ -= stream.debt_bytes();
      ++stream.frames;
      debt_bytes_ += stream.debt_bytes();
      return;
    }
    case kHeaders:
      header_bytes_ = frame.length;
      continuations_ = 0;
      headers_.clear();
      priority_bytes_ = (frame.flags & kPriority) != 0 ? kPriorityBytes : 0;
      // RFC 9113, 6.2. In a CONTINUATION frame gRPC reads only fields, and no rest of a priority.
      if (frame.length < priority_bytes_) return Find(FrameFault::kBadHeaders);
      // Others are trailers, or of calls that are over or that gRPC ignores.
      if (frame.stream % 2 == 0 || frame.stream <= last_stream_) break;
      last_stream_ = frame.stream;
      if (frame.stream > max_stream_) break;
      if (streams_.size() >= max_calls_) return Find(FrameFault::kManyStreams);
      streams_.try_emplace(frame.stream, Stream{.window = initial_window_, .begun_ns = now_ns_});
      break;
    case kContinuation:
      header_bytes_ += frame.length;
      ++continuations_;
      break;
    case kRstStream: return Reset(frame.stream, gap_ns_);
    default: return;
  }
  if (header_bytes_ > kMaxHeaderBytes || continuations_ > kMaxContinuations) {
    Find(FrameFault::kLongHeaders);
  }
}

void FrameMeter::Payload(const Frame& frame, std::span<const uint8_t> bytes) {
  if (fault_ != FrameFault::kNone) return;
  if (frame.type == kHeaders || frame.type == kContinuation) {
    const size_t skipped = std::min(priority_bytes_, bytes.size());
    priority_bytes_ -= skipped;
    headers_.insert(headers_.end(), bytes.begin() + static_cast<ptrdiff_t>(skipped), bytes.end());
    return;
  }
  if (frame.type != kData) return;
  // A frame counts as its bytes come: its head alone neither brings anything nor fills a window.
  const auto count = static_cast<int64_t>(bytes.size());
  data_bytes_ += count;
  window_ -= count;
  const auto found = streams_.find(frame.stream);
  if (found == streams_.end()) return;
  found->second.window -= count;
  if ((frame.flags & kPadded) == 0) Data(found->second, bytes);
}

void FrameMeter::End(const Frame& frame) {
  if (fault_ != FrameFault::kNone) return;
  if (frame.type == kData) {
    if (debt_bytes_ > kMaxDebtBytes ||
        spare_frames_ > kMaxSpareFrames + data_bytes_ / kBytesPerSpareFrame) {
      Find(FrameFault::kTinyFrames);
    }
  }
  const bool is_of_headers = frame.type == kHeaders || frame.type == kContinuation;
  if (is_of_headers && (frame.flags & kEndHeaders) != 0) EndHeaders(frame);
  const bool ends =
      (frame.type == kData || frame.type == kHeaders) && (frame.flags & kEndStream) != 0;
  const auto found = ends ? streams_.find(frame.stream) : streams_.end();
  if (found != streams_.end()) DropMessage(found->second);
}

// gRPC ignores the flag of padding here. Trailers have no path.
void FrameMeter::EndHeaders(const Frame& frame) {
  const std::optional<std::string_view> path = paths_.Read(headers_);
  headers_.clear();
  if (headers_.capacity() > kKeptHeaderBytes) headers_.shrink_to_fit();
  if (!path) return Find(FrameFault::kBadHeaders);
  const auto found = path->empty() ? streams_.end() : streams_.find(frame.stream);
  if (found != streams_.end() && found->second.bytes == 0) {
    const MethodRule& rule = RuleOf(*path);
    found->second.kind = rule.kind;
    found->second.max_declared = rule.max_declared_bytes;
  }
}

void FrameMeter::Data(Stream& stream, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    size_t count = 1;
    if (stream.length_bytes < kMessageHeadBytes) {
      // The first byte, which has the flags, is shifted out.
      stream.length = stream.length << 8 | bytes.front();
      if (++stream.length_bytes == kMessageHeadBytes) {
        stream.left = stream.length;
        if (stream.length > stream.max_declared) return Find(FrameFault::kLongQuestions);
      }
    } else {
      count = std::min<size_t>(stream.left, bytes.size());
      stream.left -= static_cast<uint32_t>(count);
    }
    bytes = bytes.subspan(count);
    debt_bytes_ -= stream.debt_bytes();
    const int64_t before = stream.question_bytes();
    stream.bytes += static_cast<int64_t>(count);
    debt_bytes_ += stream.debt_bytes();
    CountQuestion(stream.kind, stream.question_bytes() - before);
    unfinished_bytes_ += static_cast<int64_t>(count);
    if (stream.length_bytes == kMessageHeadBytes && stream.left == 0) EndMessage(stream);
  }
}

void FrameMeter::EndMessage(Stream& stream) {
  const int64_t spare = stream.frames - kFreeFrames - stream.bytes / kFrameBytes;
  spare_frames_ += std::max(spare, int64_t{0});
  DropMessage(stream);
}

void FrameMeter::DropMessage(Stream& stream) {
  debt_bytes_ -= stream.debt_bytes();
  unfinished_bytes_ -= stream.bytes;
  CountQuestion(stream.kind, -stream.question_bytes());
  stream = {.window = stream.window,
            .begun_ns = stream.begun_ns,
            .is_answered = stream.is_answered,
            .kind = stream.kind,
            .max_declared = stream.max_declared};
}

void FrameMeter::CountQuestion(MessageKind kind, int64_t bytes) {
  if (bytes == 0 || fault_ != FrameFault::kNone) return;
  if (bytes < 0) {
    questions_->Count(kind, bytes);
  } else if (!questions_->Add(kind, bytes)) {
    return Find(FrameFault::kLongQuestions);
  }
  own_questions_[static_cast<size_t>(kind)] += bytes;
}

void FrameMeter::CountNoQuestions() {
  for (size_t kind = 0; kind < kMessageKinds; ++kind) {
    questions_->Count(static_cast<MessageKind>(kind), -std::exchange(own_questions_[kind], 0));
  }
}

void FrameMeter::BindTo(std::shared_ptr<TokenBucket> resets,
                        std::shared_ptr<QuestionBytes> questions, size_t max_calls) {
  resets_ = std::move(resets);
  max_calls_ = max_calls;
  if (questions == questions_) return;
  for (size_t kind = 0; kind < kMessageKinds; ++kind) {
    questions->Count(static_cast<MessageKind>(kind), own_questions_[kind]);
    questions_->Count(static_cast<MessageKind>(kind), -own_questions_[kind]);
  }
  questions_ = std::move(questions);
}

void FrameMeter::Forget(uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  DropMessage(found->second);
  streams_.erase(found);
}

// A call that was not answered. Its peer may have other connections, which are not blamed for this
// one: a connection is closed only for what it has done itself.
void FrameMeter::Reset(uint32_t stream, int64_t min_life_ns) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  const Stream& call = found->second;
  const int64_t life_ns = std::max(now_ns_ - call.begun_ns, min_life_ns);
  const int64_t cost = life_ns < kRapidNs ? kRapidCost : 1;
  if (!call.is_answered) {
    constexpr TokenBucket::Rate kOwn = TokenBucket::EachSecond(kResetsOfConnection);
    constexpr TokenBucket::Rate kOfPeer = TokenBucket::EachSecond(kResets);
    const bool has_own_left = own_resets_.Take(cost, kOwn, now_ns_);
    const bool has_left = resets_->Take(cost, kOfPeer, now_ns_);
    if (!has_own_left && !has_left) Find(FrameFault::kManyResets);
  }
  Forget(stream);
}

void FrameMeter::Send(std::span<const uint8_t> bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  sent_.Split(
      bytes, [this](const Frame& frame) { BeginSent(frame); },
      [this](const Frame& frame, std::span<const uint8_t> part) { SentPayload(frame, part); },
      [](const Frame&) {});
}

void FrameMeter::BeginSent(const Frame& frame) {
  sent_word_bytes_ = 0;
  const bool ends =
      (frame.type == kData || frame.type == kHeaders) && (frame.flags & kEndStream) != 0;
  // gRPC keeps nothing of a call once it has answered.
  if (ends) return Forget(frame.stream);
  if (frame.type == kRstStream) return Reset(frame.stream, 0);
  const auto found = streams_.find(frame.stream);
  if (frame.type == kHeaders && found != streams_.end()) found->second.is_answered = true;
}

void FrameMeter::SentPayload(const Frame& frame, std::span<const uint8_t> bytes) {
  const bool is_settings = frame.type == kSettings && (frame.flags & kAck) == 0;
  const bool is_goaway = frame.type == kGoaway;
  if (!is_settings && !is_goaway && frame.type != kWindowUpdate) return;
  const size_t word = is_settings ? 6 : 4;
  for (const uint8_t byte : bytes) {
    if (sent_word_bytes_ >= word) return;  // A reason follows.
    sent_word_[sent_word_bytes_++] = byte;
    if (sent_word_bytes_ < word) continue;
    if (is_goaway) return SentGoaway();
    sent_word_bytes_ = 0;
    if (is_settings) {
      SentSetting();
      continue;
    }
    const int64_t more = ReadBytes(std::span(sent_word_).first(4)) & 0x7fffffffu;
    const auto found = streams_.find(frame.stream);
    if (frame.stream == 0) {
      window_ += more;
    } else if (found != streams_.end()) {
      found->second.window += more;
    }
  }
}

void FrameMeter::SentSetting() {
  const std::span<const uint8_t> setting(sent_word_);
  if (ReadBytes(setting.first(2)) != kInitialWindowSize) return;
  const int64_t value = ReadBytes(setting.subspan(2));
  for (auto& [number, stream] : streams_) stream.window += value - initial_window_;
  initial_window_ = value;
}

// gRPC ignores later calls than the one that it names.
void FrameMeter::SentGoaway() {
  max_stream_ = ReadBytes(std::span(sent_word_).first(4)) & 0x7fffffffu;
  std::vector<uint32_t> ignored;
  for (const auto& [number, stream] : streams_) {
    if (number > max_stream_) ignored.push_back(number);
  }
  for (const uint32_t number : ignored) Forget(number);
}

bool FrameMeter::may_send() const {
  if (window_ <= 0) return false;
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) {
    return entry.second.bytes > 0 && entry.second.window > 0;
  });
}

}  // namespace gemmd
