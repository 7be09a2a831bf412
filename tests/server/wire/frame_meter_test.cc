// SPDX-License-Identifier: Apache-2.0
//
// What frames cost and bring, counted without gRPC: each bound holds to the frame, and what honest
// clients send is far from it.
#include "server/wire/frame_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace gemmd {
namespace {

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kRstStream = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kGoaway = 7;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr uint8_t kPadded = 8;
constexpr uint8_t kPriority = 0x20;

std::string Number(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  return Number(payload.size(), 3) + Number(type, 1) + Number(flags, 1) + Number(stream, 4) +
         std::string(payload);
}

std::string Message(size_t bytes) {
  return Number(0, 1) + Number(bytes, 4) + std::string(bytes, 'm');
}

class FrameMeterTest : public testing::Test {
 protected:
  FrameMeterTest() {
    Receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    Receive(Frame(kSettings, 0, 0, ""));
    Receive(Frame(kHeaders, 0, 1, "headers"));
  }

  FrameFault Receive(std::string_view bytes) { return meter_.Receive(Span(bytes), now_ns_); }
  void Send(std::string_view bytes) { meter_.Send(Span(bytes), now_ns_); }
  FrameFault Data(std::string_view payload, uint8_t flags = 0, uint32_t stream = 1) {
    return Receive(Frame(kData, flags, stream, payload));
  }
  // The bytes in frames of so many each; the last result.
  FrameFault DataIn(size_t frame_bytes, std::string_view payload) {
    FrameFault fault = FrameFault::kNone;
    for (size_t at = 0; at < payload.size() && fault == FrameFault::kNone; at += frame_bytes) {
      fault = Data(payload.substr(at, frame_bytes));
    }
    return fault;
  }

  static constexpr size_t kMaxCalls = 1000;

  int64_t now_ns_ = 1'000'000'000;
  std::shared_ptr<TokenBucket> resets_ = std::make_shared<TokenBucket>();
  QuestionBytes all_questions_{QuestionBytes::kMaxBytes, nullptr};
  std::shared_ptr<QuestionBytes> questions_ = OfPeer();
  FrameMeter meter_{resets_, questions_, kMaxCalls};

  std::shared_ptr<QuestionBytes> OfPeer() {
    return std::make_shared<QuestionBytes>(QuestionBytes::kMaxBytesOfPeer, &all_questions_);
  }

  static std::span<const uint8_t> Span(std::string_view bytes) {
    return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  }
};

TEST_F(FrameMeterTest, AMessageInFramesOfOneByteHasADebtThatIsBounded) {
  Data(Number(0, 1) + Number(1 << 28, 4));
  // The first frame cost more than its five bytes, too.
  const int64_t free =
      (FrameMeter::kMaxDebtBytes - (FrameMeter::kFrameBytes - 5)) / (FrameMeter::kFrameBytes - 1);
  for (int64_t i = 0; i < free; ++i) ASSERT_EQ(Data("x"), FrameFault::kNone) << i;
  EXPECT_EQ(Data("x"), FrameFault::kTinyFrames);
  EXPECT_EQ(Data(std::string(16384, 'x')), FrameFault::kTinyFrames);  // For ever.
}

TEST_F(FrameMeterTest, FramesPayForThemselvesByTheirBytes) {
  EXPECT_EQ(DataIn(FrameMeter::kFrameBytes, Message(8 << 20)), FrameFault::kNone);
  EXPECT_EQ(DataIn(FrameMeter::kFrameBytes - 1, Message(32 << 20)), FrameFault::kTinyFrames);
}

TEST_F(FrameMeterTest, BytesOfOneStreamDoNotPayForFramesOfAnother) {
  Data(Number(0, 1) + Number(1 << 28, 4));
  for (int i = 0; i < 256; ++i) Data(std::string(16384, 'x'));
  Receive(Frame(kHeaders, 0, 3, "headers"));
  FrameFault fault = FrameFault::kNone;
  Data(Number(0, 1) + Number(1 << 28, 4), 0, 3);
  for (int i = 0; i < 8192 && fault == FrameFault::kNone; ++i) fault = Data("x", 0, 3);
  EXPECT_EQ(fault, FrameFault::kTinyFrames);
}

TEST_F(FrameMeterTest, DebtsOfManyStreamsAreOne) {
  FrameFault fault = FrameFault::kNone;
  for (uint32_t stream = 3; stream < 203; stream += 2) {
    Receive(Frame(kHeaders, 0, stream, "headers"));
    Data(Number(0, 1) + Number(1 << 28, 4), 0, stream);
    for (int i = 0; i < 100; ++i) fault = Data("x", 0, stream);
  }
  EXPECT_EQ(fault, FrameFault::kTinyFrames);
}

TEST_F(FrameMeterTest, SmallMessagesAreNoTinyFrames) {
  for (size_t bytes : {0, 1, 51, 63}) {
    for (int i = 0; i < 50'000; ++i) ASSERT_EQ(Data(Message(bytes)), FrameFault::kNone);
  }
  // The length apart, as some clients have it.
  for (int i = 0; i < 50'000; ++i) {
    Data(Message(51).substr(0, 5));
    ASSERT_EQ(Data(Message(51).substr(5)), FrameFault::kNone);
  }
  // Several in a frame, which ends within one.
  const std::string many = Message(51) + Message(0) + Message(7);
  for (int i = 0; i < 50'000; ++i) {
    Data(many + many.substr(0, 60));
    ASSERT_EQ(Data(many.substr(60)), FrameFault::kNone);
  }
}

TEST_F(FrameMeterTest, WholeMessagesInTinyFramesHaveABound) {
  const std::string message = Message(20);
  FrameFault fault = FrameFault::kNone;
  int messages = 0;
  for (; messages < 1000 && fault == FrameFault::kNone; ++messages) fault = DataIn(1, message);
  EXPECT_EQ(fault, FrameFault::kTinyFrames);
  EXPECT_EQ(messages, FrameMeter::kMaxSpareFrames / (25 - FrameMeter::kFreeFrames) + 1);
}

TEST_F(FrameMeterTest, EmptyFramesHaveABound) {
  for (int64_t i = 0; i < FrameMeter::kMaxSpareFrames; ++i) {
    ASSERT_EQ(Data(""), FrameFault::kNone);
  }
  EXPECT_EQ(Data(""), FrameFault::kTinyFrames);
}

TEST_F(FrameMeterTest, AnEmptyFrameThatEndsACallIsFree) {
  for (uint32_t stream = 3; stream < 40'000; stream += 2) {
    Receive(Frame(kHeaders, 0, stream, "headers"));
    Data(Message(51), 0, stream);
    ASSERT_EQ(Data("", kEndStream, stream), FrameFault::kNone);
    Send(Frame(kHeaders, kEndStream, stream, "trailers"));
  }
}

TEST_F(FrameMeterTest, HeadersHaveABoundOfBytes) {
  const std::string half(FrameMeter::kMaxHeaderBytes / 2, 'h');
  for (uint32_t stream = 3; stream < 300; stream += 2) {
    Receive(Frame(kHeaders, 0, stream, half));
    ASSERT_EQ(Receive(Frame(kContinuation, 0, stream, half)), FrameFault::kNone);
    Receive(Frame(kRstStream, 0, stream, Number(0, 4)));
  }
  Receive(Frame(kHeaders, 0, 301, half));
  Receive(Frame(kContinuation, 0, 301, half));
  EXPECT_EQ(Receive(Frame(kContinuation, 0, 301, "h")), FrameFault::kLongHeaders);
}

TEST_F(FrameMeterTest, HeadersAreTooLongByTheirLengthAlone) {
  EXPECT_EQ(Receive(Number(FrameMeter::kMaxHeaderBytes + 1, 3) + std::string("\1\0\0\0\0\3", 6)),
            FrameFault::kLongHeaders);
}

TEST_F(FrameMeterTest, HeadersHaveABoundOfFrames) {
  Receive(Frame(kHeaders, 0, 3, ""));
  for (int i = 0; i < FrameMeter::kMaxContinuations; ++i) {
    ASSERT_EQ(Receive(Frame(kContinuation, 0, 3, "")), FrameFault::kNone);
  }
  EXPECT_EQ(Receive(Frame(kContinuation, 0, 3, "")), FrameFault::kLongHeaders);
}

TEST_F(FrameMeterTest, NothingIsCountedAfterAFault) {
  const std::string bad = Frame(kHeaders, kEndHeaders, 3, "\x80");
  EXPECT_EQ(Receive(bad + Frame(kData, 0, 1, Message(100).substr(0, 50))), FrameFault::kBadHeaders);
  EXPECT_EQ(meter_.data_bytes(), 0);
  EXPECT_EQ(meter_.unfinished_bytes(), 0);
}

// gRPC reads only fields in the next frame.
TEST_F(FrameMeterTest, APriorityIsWholeInItsFrame) {
  Receive(Frame(kHeaders, kPriority, 3, "prior"));
  EXPECT_EQ(Receive(Frame(kContinuation, kEndHeaders, 3, "\x83")), FrameFault::kNone);
  Receive(Frame(kHeaders, kPriority, 5, "prio"));
  EXPECT_EQ(Receive(Frame(kContinuation, kEndHeaders, 5, "r\x83")), FrameFault::kBadHeaders);
}

TEST_F(FrameMeterTest, OpenCallsHaveABound) {
  const auto open = [&](uint32_t number) {
    return Receive(Frame(kHeaders, 0, 2 * number + 1, "headers"));
  };
  const auto max_calls = static_cast<uint32_t>(kMaxCalls);
  for (uint32_t i = 1; i < max_calls; ++i) ASSERT_EQ(open(i), FrameFault::kNone);
  // Those that the peer resets, or the daemon resets or answers, are open no longer.
  Receive(Frame(kRstStream, 0, 3, Number(0, 4)));
  Send(Frame(kRstStream, 0, 5, Number(0, 4)));
  Send(Frame(kHeaders, kEndStream, 7, "trailers"));
  Send(Frame(kData, kEndStream, 9, ""));
  Data("", kEndStream, 11);  // Waits for its answer.
  for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(open(max_calls + i), FrameFault::kNone);
  EXPECT_EQ(open(max_calls + 4), FrameFault::kManyStreams);
}

TEST_F(FrameMeterTest, HeadersOfNoNewCallOpenNone) {
  for (uint32_t i = 1; i < kMaxCalls; ++i) Receive(Frame(kHeaders, 0, 2 * i + 1, "headers"));
  // As many as may be are open. Trailers, and headers of calls that are over.
  EXPECT_EQ(Receive(Frame(kHeaders, kEndStream, 3, "trailers")), FrameFault::kNone);
  Send(Frame(kRstStream, 0, 5, Number(0, 4)));
  EXPECT_EQ(Receive(Frame(kHeaders, kEndStream, 5, "trailers")), FrameFault::kNone);
  EXPECT_EQ(Receive(Frame(kHeaders, 0, 2, "headers")), FrameFault::kNone);
  EXPECT_EQ(Receive(Frame(kHeaders, 0, 2001, "headers")), FrameFault::kNone);  // In place of 5.
  EXPECT_EQ(Receive(Frame(kHeaders, 0, 2003, "headers")), FrameFault::kManyStreams);
}

TEST_F(FrameMeterTest, CallsAfterGoawayAreNotOpen) {
  Receive(Frame(kHeaders, 0, 3, "headers"));
  Data(Message(1000).substr(0, 500), 0, 3);
  Send(Frame(kGoaway, 0, 0, Number(0x7fffffff, 4) + Number(0, 4)));
  EXPECT_EQ(meter_.unfinished_bytes(), 500);
  Send(Frame(kGoaway, 0, 0, Number(1, 4) + Number(0, 4) + "a reason"));
  EXPECT_EQ(meter_.unfinished_bytes(), 0);
  for (uint32_t i = 0; i < 2 * kMaxCalls; ++i) {
    ASSERT_EQ(Receive(Frame(kHeaders, 0, 2 * i + 5, "headers")), FrameFault::kNone) << i;
  }
  Data(Message(1000).substr(0, 500));
  EXPECT_EQ(meter_.unfinished_bytes(), 500);  // What was open before is open still.
}

class ResetTest : public FrameMeterTest {
 protected:
  static constexpr int64_t kSecond = 1'000'000'000;
  static constexpr int64_t kRapidCalls = FrameMeter::kResets / FrameMeter::kRapidCost;

  // Opens a call, and resets it after so long; the daemon does, if `is_sent`.
  FrameFault Reset(int64_t after_ns, bool is_sent = false) {
    stream_ += 2;
    Receive(Frame(kHeaders, kEndStream, stream_, "headers"));
    now_ns_ += after_ns;
    const std::string reset = Frame(kRstStream, 0, stream_, Number(8, 4));
    if (!is_sent) return Receive(reset);
    Send(reset);
    return Receive(Frame(kWindowUpdate, 0, 0, Number(1, 4)));
  }

  uint32_t stream_ = 1;
};

TEST_F(ResetTest, RapidResetsHaveABound) {
  for (int64_t i = 0; i < kRapidCalls; ++i) ASSERT_EQ(Reset(0), FrameFault::kNone) << i;
  EXPECT_EQ(Reset(0), FrameFault::kManyResets);
}

TEST_F(ResetTest, ThoseThatAPeerMakesTheDaemonSendCount) {
  for (int64_t i = 0; i < kRapidCalls; ++i) ASSERT_EQ(Reset(0, true), FrameFault::kNone) << i;
  EXPECT_EQ(Reset(0, true), FrameFault::kManyResets);
}

TEST_F(ResetTest, EachSecondHasAsManyAgain) {
  for (int second = 0; second < 5; ++second) {
    for (int64_t i = 0; i < kRapidCalls; ++i) ASSERT_EQ(Reset(0), FrameFault::kNone);
    now_ns_ += kSecond;
  }
  now_ns_ += 100 * kSecond;  // Which are not saved.
  for (int64_t i = 0; i < kRapidCalls; ++i) ASSERT_EQ(Reset(0), FrameFault::kNone);
  EXPECT_EQ(Reset(0), FrameFault::kManyResets);
}

TEST_F(ResetTest, CallsThatRunOutOfTimeCostATenth) {
  // A hundred at a time, each of 10 ms: as many as one connection can have.
  for (int round = 0; round < 1000; ++round) {
    const uint32_t first = stream_ + 2;
    for (int i = 0; i < 100; ++i) Receive(Frame(kHeaders, kEndStream, stream_ += 2, "headers"));
    now_ns_ += FrameMeter::kRapidNs;
    for (uint32_t stream = first; stream <= stream_; stream += 2) {
      ASSERT_EQ(Receive(Frame(kRstStream, 0, stream, Number(8, 4))), FrameFault::kNone) << round;
    }
  }
}

TEST_F(ResetTest, CallsThatAreAnsweredCostNothing) {
  for (int i = 0; i < 3 * kRapidCalls; ++i) {
    Receive(Frame(kHeaders, 0, stream_ += 2, "headers"));
    Send(Frame(kHeaders, 0, stream_, "headers"));
    ASSERT_EQ(Receive(Frame(kRstStream, 0, stream_, Number(8, 4))), FrameFault::kNone);
  }
}

TEST_F(ResetTest, WhatIsReadAfterAPauseMayHaveLivedAsLong) {
  for (int round = 0; round < 30; ++round) {
    std::string calls;
    for (int i = 0; i < 300; ++i) {
      calls += Frame(kHeaders, kEndStream, stream_ += 2, "headers");
      calls += Frame(kRstStream, 0, stream_, Number(8, 4));
    }
    now_ns_ += kSecond / 10;
    ASSERT_EQ(Receive(calls), FrameFault::kNone) << round;
  }
}

TEST_F(ResetTest, TheFirstReadOfAConnectionCameAfterNoPause) {
  FrameMeter meter(resets_, questions_, kMaxCalls);
  std::string calls = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (int i = 0; i <= kRapidCalls; ++i) {
    calls += Frame(kHeaders, kEndStream, stream_ += 2, "headers");
    calls += Frame(kRstStream, 0, stream_, Number(8, 4));
  }
  EXPECT_EQ(meter.Receive(Span(calls), now_ns_), FrameFault::kManyResets);
}

TEST_F(ResetTest, ConnectionsOfAPeerShareTheBoundButNotTheBlame) {
  for (int64_t i = 0; i < kRapidCalls; ++i) ASSERT_EQ(Reset(0), FrameFault::kNone);
  FrameMeter other(resets_, questions_, kMaxCalls);
  other.Receive(Span("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), now_ns_);
  const int64_t own = FrameMeter::kResetsOfConnection / FrameMeter::kRapidCost;
  uint32_t stream = 1;
  const auto reset = [&] {
    stream += 2;
    other.Receive(Span(Frame(kHeaders, 0, stream, "headers")), now_ns_);
    return other.Receive(Span(Frame(kRstStream, 0, stream, Number(8, 4))), now_ns_);
  };
  for (int64_t i = 0; i < own; ++i) ASSERT_EQ(reset(), FrameFault::kNone) << i;
  EXPECT_EQ(reset(), FrameFault::kManyResets);
}

TEST_F(FrameMeterTest, WhatIsUnfinishedEndsWithTheMessageOrTheCall) {
  const std::string half = Message(1000).substr(0, 500);
  Data(half);
  EXPECT_EQ(meter_.unfinished_bytes(), 500);
  Data(Message(1000).substr(500));
  EXPECT_EQ(meter_.unfinished_bytes(), 0);
  const std::string ends[] = {Frame(kRstStream, 0, 0, Number(0, 4)),
                              Frame(kData, kEndStream, 0, "")};
  uint32_t stream = 3;
  for (std::string end : ends) {
    for (const bool is_sent : {false, true}) {
      Receive(Frame(kHeaders, 0, stream, "headers"));
      Data(half, 0, stream);
      ASSERT_EQ(meter_.unfinished_bytes(), 500);
      end.replace(5, 4, Number(stream, 4));
      is_sent ? Send(end) : void(Receive(end));
      ASSERT_EQ(meter_.unfinished_bytes(), 0) << stream;
      stream += 2;
    }
  }
  // What comes for a call that has ended is not kept.
  Data(half, 0, 3);
  EXPECT_EQ(meter_.unfinished_bytes(), 0);
}

TEST_F(FrameMeterTest, ThePeerMaySendWhileBothWindowsAreOpen) {
  EXPECT_FALSE(meter_.may_send());  // No message has begun.
  Data(Number(0, 1) + Number(1 << 28, 4));
  EXPECT_TRUE(meter_.may_send());
  Data(std::string(65'535 - 5, 'x'));
  EXPECT_FALSE(meter_.may_send());
  Send(Frame(kWindowUpdate, 0, 0, Number(1, 4)));
  EXPECT_FALSE(meter_.may_send());
  Send(Frame(kWindowUpdate, 0, 1, Number(1, 4)));
  EXPECT_TRUE(meter_.may_send());
  Data("x");
  EXPECT_FALSE(meter_.may_send());
}

TEST_F(FrameMeterTest, ASettingMovesTheWindowsOfOpenCalls) {
  Send(Frame(kWindowUpdate, 0, 0, Number(1 << 20, 4)));
  Data(Number(0, 1) + Number(1 << 28, 4) + std::string(65'535 - 5, 'x'));
  EXPECT_FALSE(meter_.may_send());
  Send(Frame(kSettings, 0, 0, Number(5, 2) + Number(1, 4) + Number(4, 2) + Number(65'536, 4)));
  EXPECT_TRUE(meter_.may_send());
  Data("x");
  EXPECT_FALSE(meter_.may_send());
  Send(Frame(kSettings, 1, 0, ""));  // An acknowledgement says nothing.
  EXPECT_FALSE(meter_.may_send());
}

TEST_F(FrameMeterTest, PiecesOfAnyLengthAreTheSame) {
  std::string bytes = Frame(kHeaders, 0, 3, "headers");
  for (int i = 0; i < 50; ++i) {
    bytes += Frame(kData, 0, 3, Message(300).substr(0, 100)) + Frame(kWindowUpdate, 0, 3, "1234");
    bytes += Frame(kData, 0, 3, Message(300).substr(100) + Message(40).substr(0, 17));
    bytes += Frame(kData, 0, 3, Message(40).substr(17));
  }
  bytes += Frame(kData, 0, 3, Message(1000).substr(0, 777));
  for (const size_t piece : {1, 2, 3, 5, 8, 9, 10, 100, 1000}) {
    FrameMeter meter(resets_, questions_, kMaxCalls);
    const std::string all = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes;
    for (size_t at = 0; at < all.size(); at += piece) {
      const std::string_view part = std::string_view(all).substr(at, piece);
      meter.Receive({reinterpret_cast<const uint8_t*>(part.data()), part.size()}, 0);
    }
    EXPECT_EQ(meter.unfinished_bytes(), 777) << piece;
    EXPECT_EQ(meter.data_bytes(), 50 * (305 + 45) + 777) << piece;
  }
}

TEST_F(FrameMeterTest, AFrameCountsAsItsBytesCome) {
  Data(Message(1 << 20).substr(0, 60'000));
  const std::string last = Frame(kData, 0, 1, std::string(5535, 'x'));
  Receive(last.substr(0, 9));
  EXPECT_EQ(meter_.data_bytes(), 60'000);
  EXPECT_TRUE(meter_.may_send());  // The rest of the frame.
  Receive(last.substr(9, 100));
  EXPECT_EQ(meter_.data_bytes(), 60'100);
  EXPECT_TRUE(meter_.may_send());
  Receive(last.substr(109));
  EXPECT_EQ(meter_.data_bytes(), 65'535);
  EXPECT_FALSE(meter_.may_send());
}

TEST_F(FrameMeterTest, PaddedFramesAreNotRead) {
  // gRPC takes none.
  Data("\4" + std::string(100, 'x'), kPadded);
  EXPECT_EQ(meter_.unfinished_bytes(), 0);
  EXPECT_EQ(meter_.data_bytes(), 101);
}

class QuestionTest : public FrameMeterTest {
 protected:
  // Headers whose only field is the path, not kept.
  static std::string Path(std::string_view path) {
    return std::string("\x04") + static_cast<char>(path.size()) + std::string(path);
  }
  // Begins a call and sends so many bytes of a message that is longer, the five before it included.
  static std::string Question(std::string_view path, uint32_t stream, int64_t bytes,
                              int64_t declared = 1 << 30) {
    std::string frames = Frame(kHeaders, kEndHeaders, stream, Path(path));
    frames += Frame(kData, 0, stream, Number(0, 1) + Number(declared, 4));
    for (int64_t left = bytes - 5; left > 0; left -= 16384) {
      frames += Frame(kData, 0, stream, std::string(std::min<size_t>(left, 16384), 'x'));
    }
    return frames;
  }
  // Questions to health, as long as any that it takes, until so many bytes are counted.
  static std::string HealthQuestions(uint32_t stream, int64_t counted) {
    constexpr int64_t kEach = kMaxDeclared + 4 - kFree;
    std::string frames;
    for (; counted > 0; counted -= kEach, stream += 2) {
      frames += Question(kHealth, stream, kFree + std::min(counted, kEach), kMaxDeclared);
    }
    return frames;
  }
  int64_t held(MessageKind kind) const { return all_questions_.bytes(kind); }

  static constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
  static constexpr char kReflection[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
  static constexpr char kList[] = "/gemmd.v1.Registry/ListKernels";
  static constexpr int64_t kFree = QuestionBytes::kFreeBytes;
  static constexpr int64_t kOfPeer = QuestionBytes::kMaxBytesOfPeer;
  static constexpr int64_t kMaxDeclared = 64 << 10;
};

TEST_F(QuestionTest, KindsFollowThePath) {
  for (const char* const path :
       {"/gemmd.v1.Gemm/Multiply", "/gemmd.v1.Gemm/MultiplyStream", "/gemmd.v1.Tensors/Put",
        "/inference.GRPCInferenceService/ModelInfer",
        "/inference.GRPCInferenceService/ModelStreamInfer"}) {
    EXPECT_EQ(RuleOf(path).kind, MessageKind::kOperands) << path;
  }
  for (const char* const path :
       {kHealth, "/grpc.health.v1.Health/Watch", "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady"}) {
    EXPECT_EQ(RuleOf(path).kind, MessageKind::kOpenQuestion) << path;
  }
  for (const char* const path :
       {kList, "/gemmd.v1.Registry/Explain", "/gemmd.v1.Tensors/Get", "/gemmd.v1.Admin/X",
        "/inference.GRPCInferenceService/ModelMetadata",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/", ""}) {
    EXPECT_EQ(RuleOf(path).kind, MessageKind::kQuestion) << path;
  }
}

TEST_F(QuestionTest, EachMethodTakesWhatItMayNeed) {
  constexpr int64_t kAny = MethodRule::kUnlimited;
  struct Case {
    const char* path;
    int64_t bytes;
    int64_t declared_bytes;
  };
  for (const auto& [path, bytes, declared_bytes] : std::initializer_list<Case>{
           {"/gemmd.v1.Gemm/Multiply", kAny, kAny},
           {"/gemmd.v1.Tensors/Put", kAny, kAny},
           {"/inference.GRPCInferenceService/ModelInfer", kAny, kAny},
           {"/gemmd.v1.Registry/Explain", 1 << 20, kAny},
           {"/gemmd.v1.Registry/GetStatistics", 4096, kAny},
           {kList, 4096, kAny},
           {"/gemmd.v1.Tensors/OpenSession", 4096, kAny},
           {"/gemmd.v1.Tensors/Compress", 4096, kAny},
           {"/gemmd.v1.Admin/DropSession", 4096, kAny},
           {"/inference.GRPCInferenceService/ModelMetadata", 4096, kAny},
           {"/inference.GRPCInferenceService/TraceSetting", 4096, kAny},
           {"/inference.GRPCInferenceService/ServerReady", 4096, kMaxDeclared},
           {kHealth, kMaxDeclared, kMaxDeclared},
           {kReflection, kMaxDeclared, kMaxDeclared},
           {"/no.Such/Method", 4096, kAny}}) {
    EXPECT_EQ(RuleOf(path).max_bytes, bytes) << path;
    EXPECT_EQ(RuleOf(path).max_declared_bytes, declared_bytes) << path;
  }
}

TEST_F(QuestionTest, WhatIsTooLongForAToolIsRefusedAtItsHead) {
  const std::string head = Number(0, 1) + Number(kMaxDeclared + 1, 4);
  for (const char* const path :
       {kHealth, "/grpc.health.v1.Health/Watch", "/inference.GRPCInferenceService/ServerLive",
        kReflection, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    FrameMeter meter(resets_, OfPeer(), kMaxCalls);
    const auto receive = [&](std::string_view bytes) { return meter.Receive(Span(bytes), 0); };
    receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    receive(Frame(kHeaders, kEndHeaders, 1, Path(path)));
    // A whole message as long as the longest, and then another one.
    EXPECT_EQ(receive(Frame(kData, 0, 1, Message(kMaxDeclared))), FrameFault::kNone) << path;
    EXPECT_EQ(receive(Frame(kData, 0, 1, head.substr(0, 4))), FrameFault::kNone) << path;
    EXPECT_EQ(receive(Frame(kData, 0, 1, head.substr(4))), FrameFault::kLongQuestions) << path;
  }
  // One to another method is refused with a status, once it is there.
  Receive(Frame(kHeaders, kEndHeaders, 3, Path(kList)));
  EXPECT_EQ(Data(Message(kMaxDeclared + 1), 0, 3), FrameFault::kNone);
}

TEST_F(QuestionTest, ThoseOfAPeerHaveABound) {
  EXPECT_EQ(Receive(Question(kList, 3, kFree + kOfPeer)), FrameFault::kNone);
  EXPECT_EQ(held(MessageKind::kQuestion), kOfPeer);
  EXPECT_EQ(Data("x", 0, 3), FrameFault::kLongQuestions);
  EXPECT_EQ(held(MessageKind::kQuestion), 0);  // The connection is closed.
}

TEST_F(QuestionTest, OpenOnesAreCountedApart) {
  ASSERT_EQ(Receive(Question(kList, 3, kFree + kOfPeer)), FrameFault::kNone);
  ASSERT_EQ(Receive(HealthQuestions(5, kOfPeer)), FrameFault::kNone);
  FrameMeter other(resets_, OfPeer(), kMaxCalls);
  other.Receive(Span("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), now_ns_);
  EXPECT_EQ(other.Receive(Span(HealthQuestions(1, kOfPeer)), now_ns_), FrameFault::kNone);
  {
    FrameMeter third(resets_, OfPeer(), kMaxCalls);
    third.Receive(Span("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), now_ns_);
    // Health has no room, short questions need none, and others have their own.
    EXPECT_EQ(third.Receive(Span(Question(kHealth, 1, kFree, kMaxDeclared)), now_ns_),
              FrameFault::kNone);
    EXPECT_EQ(third.Receive(Span(Question(kList, 3, kFree + kOfPeer)), now_ns_), FrameFault::kNone);
    EXPECT_EQ(held(MessageKind::kQuestion), 2 * kOfPeer);
    EXPECT_EQ(third.Receive(Span(Question(kHealth, 5, kFree + 1, kMaxDeclared)), now_ns_),
              FrameFault::kLongQuestions);
  }
  EXPECT_EQ(held(MessageKind::kQuestion), kOfPeer);
  EXPECT_EQ(held(MessageKind::kOpenQuestion), 2 * kOfPeer);
}

TEST_F(QuestionTest, OperandsAreNotCounted) {
  EXPECT_EQ(Receive(Question("/gemmd.v1.Gemm/Multiply", 3, 2 * kOfPeer)), FrameFault::kNone);
  EXPECT_EQ(held(MessageKind::kOperands), 0);
}

TEST_F(QuestionTest, TheyCountUntilTheyOrTheirCallsEnd) {
  const auto begin = [&](uint32_t stream) {
    ASSERT_EQ(Receive(Question(kList, stream, kFree + 1000)), FrameFault::kNone);
    ASSERT_EQ(held(MessageKind::kQuestion), 1000);
  };
  begin(3);
  Receive(Frame(kRstStream, 0, 3, Number(0, 4)));
  EXPECT_EQ(held(MessageKind::kQuestion), 0);
  begin(5);
  Send(Frame(kHeaders, kEndStream, 5, "trailers"));
  EXPECT_EQ(held(MessageKind::kQuestion), 0);
  Receive(Frame(kHeaders, kEndHeaders, 7, Path(kList)));
  for (int i = 0; i < 3; ++i) Data(Message(100'000), 0, 7);
  EXPECT_EQ(held(MessageKind::kQuestion), 0);
  begin(9);
  const std::shared_ptr<QuestionBytes> later = OfPeer();
  meter_.BindTo(resets_, later, kMaxCalls);
  EXPECT_EQ(questions_->bytes(MessageKind::kQuestion), 0);
  EXPECT_EQ(later->bytes(MessageKind::kQuestion), 1000);
  EXPECT_EQ(held(MessageKind::kQuestion), 1000);
}

TEST(QuestionBytesTest, WhatIsRefusedIsNotCounted) {
  constexpr MessageKind kKind = MessageKind::kQuestion;
  QuestionBytes all(100, nullptr);
  QuestionBytes one(60, &all);
  QuestionBytes other(60, &all);
  EXPECT_TRUE(one.Add(kKind, 60));
  EXPECT_FALSE(one.Add(kKind, 1));
  EXPECT_FALSE(other.Add(kKind, 41));
  EXPECT_EQ(one.bytes(kKind), 60);
  EXPECT_EQ(other.bytes(kKind), 0);
  EXPECT_EQ(all.bytes(kKind), 60);
  EXPECT_TRUE(other.Add(kKind, 40)) << "the refusal took no room";
}

// An encrypted connection is bound at each read, and other connections may have taken the room.
TEST_F(QuestionTest, AConnectionIsNotClosedWhenItsPeerBecomesKnown) {
  const std::shared_ptr<QuestionBytes> later = OfPeer();
  later->Count(MessageKind::kQuestion, kOfPeer);
  ASSERT_EQ(Receive(Question(kList, 3, kFree + 1000)), FrameFault::kNone);
  for (int i = 0; i < 3; ++i) {
    meter_.BindTo(resets_, later, kMaxCalls);
    EXPECT_EQ(meter_.fault(), FrameFault::kNone);
    EXPECT_EQ(questions_->bytes(MessageKind::kQuestion), 0);
    EXPECT_EQ(later->bytes(MessageKind::kQuestion), kOfPeer + 1000);
    EXPECT_EQ(held(MessageKind::kQuestion), kOfPeer + 1000);
  }
  EXPECT_EQ(Data("x", 0, 3), FrameFault::kLongQuestions);
  EXPECT_EQ(later->bytes(MessageKind::kQuestion), kOfPeer);
}

TEST_F(QuestionTest, PathsAreFoundInPiecesAndFromBefore) {
  const std::string kept = std::string("\x44") + Path(kHealth).substr(1);
  Receive(Frame(kHeaders, kPriority, 3, "prior" + kept.substr(0, 3)));
  for (const char byte : Frame(kContinuation, kEndHeaders, 3, kept.substr(3))) {
    Receive(std::string(1, byte));
  }
  Data(Number(0, 1) + Number(kMaxDeclared, 4) + std::string(10'000, 'x'), 0, 3);
  EXPECT_EQ(held(MessageKind::kOpenQuestion), 10'005 - kFree);
  Receive(Frame(kHeaders, kEndHeaders, 5, "\xbe"));
  Data(Number(0, 1) + Number(kMaxDeclared, 4) + std::string(10'000, 'x'), 0, 5);
  EXPECT_EQ(held(MessageKind::kOpenQuestion), 2 * (10'005 - kFree));
  // Trailers of a call that is known.
  Receive(Frame(kHeaders, kEndHeaders | kEndStream, 5, "\x83"));
  EXPECT_EQ(held(MessageKind::kOpenQuestion), 10'005 - kFree);
  EXPECT_EQ(Receive(Frame(kHeaders, kEndHeaders, 7, "\xbf")), FrameFault::kBadHeaders);
  EXPECT_EQ(held(MessageKind::kOpenQuestion), 0);
}

TEST(FrameMeter, WhatIsNoHttp2HasNoFault) {
  FrameMeter meter(std::make_shared<TokenBucket>(),
                   std::make_shared<QuestionBytes>(QuestionBytes::kMaxBytesOfPeer, nullptr), 1);
  const std::string text = "POST / HTTP/1.1\r\n\r\n" + std::string(1 << 20, '\1');
  EXPECT_EQ(meter.Receive({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, 0),
            FrameFault::kNone);
  EXPECT_EQ(meter.data_bytes(), 0);
}

}  // namespace
}  // namespace gemmd
