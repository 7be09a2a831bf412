// SPDX-License-Identifier: Apache-2.0
//
// What the HTTP/2 frames of one connection cost gRPC beside their bytes. gRPC keeps 32 to 48 bytes
// for each DATA frame of a message that has not ended, decodes headers of any length, counts
// neither in its quota, and has no hook for frames. So the daemon counts them as they pass
// (server/wire/socket_watch.h), and closes a connection whose frames cost more than they bring.
//
// What an honest client sends is far from each bound of its own: DATA frames are of 16 KiB, or
// whole messages. The bound of all peers' questions may be reached by others.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/system/token_bucket.h"
#include "server/wire/gate.h"
#include "server/wire/header_paths.h"

namespace gemmd {

// Why a connection is closed.
enum class FrameFault {
  kNone,
  kTinyFrames,     // Messages in DATA frames of a few bytes.
  kLongHeaders,    // Headers of more bytes or CONTINUATION frames than any call has.
  kManyStreams,    // More open calls than any limit of them.
  kManyResets,     // Calls that end before they are answered, faster than gRPC forgets them.
  kBadHeaders,     // Headers that are not HPACK.
  kLongQuestions,  // Messages of methods without operands, for which there is no room, or longer
                   // than the method may ever have (MethodRule::max_declared_bytes).
};
std::string_view NameOf(FrameFault fault);

// The bytes of questions that have begun to arrive, of one peer or of all. gRPC gathers a message
// of any length before the daemon can refuse it. Open questions are counted apart, so that floods
// of them leave room to the others; but any peer that may connect can begin both. Threads: any.
class QuestionBytes {
 public:
  // The bytes of one question that are not counted: almost all are shorter.
  static constexpr int64_t kFreeBytes = 4096;
  // What those of all peers may hold, and those of one.
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  static constexpr int64_t kMaxBytesOfPeer = kMaxBytes / 2;

  // Borrows `within`; null: none.
  QuestionBytes(int64_t max_bytes, QuestionBytes* within)
      : max_bytes_(max_bytes), within_(within) {}

  // Counts more of this kind if both bounds then hold; otherwise returns false and counts nothing,
  // so that no other connection is refused because of it.
  bool Add(MessageKind kind, int64_t bytes) {
    std::atomic<int64_t>& own = bytes_[static_cast<size_t>(kind)];
    int64_t before = own;
    do {
      if (bytes > max_bytes_ - before) return false;
    } while (!own.compare_exchange_weak(before, before + bytes));
    if (within_ == nullptr || within_->Add(kind, bytes)) return true;
    own -= bytes;
    return false;
  }
  // Counts more of this kind, or fewer if it is negative, whatever the bounds.
  void Count(MessageKind kind, int64_t bytes) {
    bytes_[static_cast<size_t>(kind)] += bytes;
    if (within_ != nullptr) within_->Count(kind, bytes);
  }
  int64_t bytes(MessageKind kind) const { return bytes_[static_cast<size_t>(kind)]; }

 private:
  const int64_t max_bytes_;
  QuestionBytes* const within_;
  std::array<std::atomic<int64_t>, kMessageKinds> bytes_ = {};
};

// Cuts bytes into frames, whatever pieces they come in.
class FrameSplitter {
 public:
  struct Frame {
    uint32_t length = 0;
    uint8_t type = 0;
    uint8_t flags = 0;
    uint32_t stream = 0;
  };

  // Calls `begin(frame)` once its nine bytes are there, `payload(frame, bytes)` for what comes of
  // the rest, and `end(frame)`.
  template <typename Begin, typename Payload, typename End>
  void Split(std::span<const uint8_t> bytes, Begin begin, Payload payload, End end) {
    while (!bytes.empty()) {
      if (have_ < head_.size()) {
        head_[have_++] = bytes.front();
        bytes = bytes.subspan(1);
        if (have_ < head_.size()) continue;
        ReadHead();
        begin(frame_);
      }
      const size_t count = left_ < bytes.size() ? left_ : bytes.size();
      if (count > 0) payload(frame_, bytes.first(count));
      bytes = bytes.subspan(count);
      left_ -= static_cast<uint32_t>(count);
      if (left_ > 0) continue;
      have_ = 0;
      end(frame_);
    }
  }

 private:
  void ReadHead();

  std::array<uint8_t, 9> head_;
  size_t have_ = 0;
  uint32_t left_ = 0;
  Frame frame_;
};

// Not safe for threads. Only headers are copied, and only they and the heads of frames and messages
// are looked at.
class FrameMeter {
 public:
  // A frame costs this much; bytes of its message pay for it. What is not paid for, and is not of a
  // message that has arrived, is at most kMaxDebtBytes.
  static constexpr int64_t kFrameBytes = 64;
  static constexpr int64_t kMaxDebtBytes = int64_t{256} << 10;

  // Of messages that have arrived each may have two frames more than its bytes pay for, because
  // some clients send a message's length apart, and these many others, and one for each KiB that
  // the connection has sent.
  static constexpr int64_t kFreeFrames = 2;
  static constexpr int64_t kMaxSpareFrames = 4096;
  static constexpr int64_t kBytesPerSpareFrame = 1024;

  // gRPC refuses a call with more than 8 KiB of headers, but decodes all of them first.
  static constexpr int64_t kMaxHeaderBytes = int64_t{64} << 10;
  static constexpr int kMaxContinuations = 32;

  // The calls of one peer that may end unanswered at once, and in each second after that, because
  // the peer resets them or makes the daemon reset them; and the calls of these that each of its
  // connections may have, whatever the others do. gRPC holds 6 KiB of each until it handles the
  // reset, which no quota counts. A call that a client's deadline ends has lived for longer than
  // kRapidNs, and costs a tenth.
  static constexpr int64_t kResets = 10'000;
  static constexpr int64_t kResetsOfConnection = kResets / 4;
  static constexpr int64_t kRapidCost = 10;
  static constexpr int64_t kRapidNs = 10'000'000;

  // At most `max_calls` may be open at once. `resets` and `questions` are the peer's.
  FrameMeter(std::shared_ptr<TokenBucket> resets, std::shared_ptr<QuestionBytes> questions,
             size_t max_calls)
      : resets_(std::move(resets)), questions_(std::move(questions)), max_calls_(max_calls) {}
  ~FrameMeter() { CountNoQuestions(); }
  FrameMeter(const FrameMeter&) = delete;
  FrameMeter& operator=(const FrameMeter&) = delete;

  // What the peer sent next. What it found first it gives ever after. What is read at once may have
  // come at any time since the last Receive, so no call that is reset has lived for less than that.
  FrameFault Receive(std::span<const uint8_t> bytes, int64_t now_ns);
  // More of what was read at once.
  FrameFault ReceiveMore(std::span<const uint8_t> bytes);

  // What was sent to the peer next.
  void Send(std::span<const uint8_t> bytes, int64_t now_ns);

  // From now on these count. What has been counted is counted there, whatever the bounds.
  void BindTo(std::shared_ptr<TokenBucket> resets, std::shared_ptr<QuestionBytes> questions,
              size_t max_calls);

  FrameFault fault() const { return fault_; }
  // Of messages that have begun and not ended.
  int64_t unfinished_bytes() const { return unfinished_bytes_; }
  // Of DATA frames since the beginning, as far as they have arrived.
  int64_t data_bytes() const { return data_bytes_; }
  // Whether the peer may send more of a message that has begun: its windows are open.
  bool may_send() const;

 private:
  using Frame = FrameSplitter::Frame;
  // A call that has neither been answered nor reset.
  struct Stream {
    int64_t window = 0;
    int64_t begun_ns = 0;
    bool is_answered = false;  // Its answer has begun.
    // Until its path is known, nothing is counted.
    MessageKind kind = MessageKind::kOperands;
    int64_t max_declared = MethodRule::kUnlimited;
    // Of the message that has begun, the five bytes before it included.
    int64_t frames = 0;
    int64_t bytes = 0;
    uint32_t left = 0;    // Of the message, once its length is known.
    uint32_t length = 0;  // As far as it has come.
    int length_bytes = 0;

    int64_t debt_bytes() const {
      const int64_t debt = frames * kFrameBytes - bytes;
      return debt > 0 ? debt : 0;
    }
    int64_t question_bytes() const {
      const bool is_counted = kind != MessageKind::kOperands && bytes > QuestionBytes::kFreeBytes;
      return is_counted ? bytes - QuestionBytes::kFreeBytes : 0;
    }
  };
  using Streams = absl::flat_hash_map<uint32_t, Stream>;

  void Begin(const Frame& frame);
  void Payload(const Frame& frame, std::span<const uint8_t> bytes);
  void End(const Frame& frame);
  void EndHeaders(const Frame& frame);
  void Data(Stream& stream, std::span<const uint8_t> bytes);
  void EndMessage(Stream& stream);
  void DropMessage(Stream& stream);
  void Forget(uint32_t stream);
  void Reset(uint32_t stream, int64_t min_life_ns);
  void BeginSent(const Frame& frame);
  void SentPayload(const Frame& frame, std::span<const uint8_t> bytes);
  void SentSetting();
  void SentGoaway();
  void CountQuestion(MessageKind kind, int64_t bytes);
  void CountNoQuestions();
  void Find(FrameFault fault) {
    if (fault_ != FrameFault::kNone) return;
    fault_ = fault;
    CountNoQuestions();
  }

  std::shared_ptr<TokenBucket> resets_;
  std::shared_ptr<QuestionBytes> questions_;
  std::array<int64_t, kMessageKinds> own_questions_ = {};  // Bytes counted there.
  TokenBucket own_resets_;
  size_t max_calls_;
  int64_t now_ns_ = 0;
  int64_t received_ns_ = -1;  // When Receive was called last,
  int64_t gap_ns_ = 0;        // and so long after the time before.
  FrameFault fault_ = FrameFault::kNone;
  size_t preface_ = 0;  // Bytes of it that have come.
  bool is_http2_ = true;
  FrameSplitter received_;
  Streams streams_;
  uint32_t last_stream_ = 0;           // The highest number of a call,
  uint32_t max_stream_ = 0x7fffffffu;  // and the one after which GOAWAY allows none.
  int64_t unfinished_bytes_ = 0;
  int64_t debt_bytes_ = 0;  // Of all streams.
  int64_t spare_frames_ = 0;
  int64_t data_bytes_ = 0;
  int64_t header_bytes_ = 0;   // Of the headers that are coming.
  size_t priority_bytes_ = 0;  // Of their first frame, still to come.
  std::vector<uint8_t> headers_;
  HeaderPaths paths_;
  int continuations_ = 0;

  FrameSplitter sent_;
  std::array<uint8_t, 6> sent_word_;  // A setting, or the first value of WINDOW_UPDATE or GOAWAY.
  size_t sent_word_bytes_ = 0;
  int64_t window_ = 65'535;          // Of the connection.
  int64_t initial_window_ = 65'535;  // Of a new stream.
};

}  // namespace gemmd
