// SPDX-License-Identifier: Apache-2.0
//
// Which connections are closed for their time, by looks at a simulated clock and sockets without
// gRPC: the process's recvmsg and sendmsg are those that the daemon puts in front.
#include "server/wire/socket_watch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/system/files.h"
#include "server/system/sockets.h"
#include "server/wire/connection_acceptor.h"
#include "tests/testing/patience.h"

namespace {

thread_local int64_t system_calls = 0;

}  // namespace

// In place of those of the C library, which they call: these calls are counted.
extern "C" int getsockopt(int descriptor, int level, int option, void* value,
                          socklen_t* bytes) noexcept {
  static const auto next = reinterpret_cast<decltype(&getsockopt)>(dlsym(RTLD_NEXT, "getsockopt"));
  ++system_calls;
  return next(descriptor, level, option, value, bytes);
}

// NOLINTNEXTLINE(google-runtime-int): as the C library declares it.
extern "C" int ioctl(int descriptor, unsigned long request, ...) noexcept {
  static const auto next = reinterpret_cast<decltype(&ioctl)>(dlsym(RTLD_NEXT, "ioctl"));
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  ++system_calls;
  return next(descriptor, request, argument);
}

namespace gemmd {
namespace {

std::string Number(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string Frame(uint8_t type, uint32_t stream, std::string_view payload) {
  return Number(payload.size(), 3) + Number(type, 1) + Number(0, 1) + Number(stream, 4) +
         std::string(payload);
}

class SocketWatchTest : public testing::Test {
 protected:
  SocketWatchTest() {
    std::array<int, 2> pair = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
    daemon_ = FileDescriptor(pair[0]);
    peer_ = FileDescriptor(pair[1]);
    SocketWatch::Get().Add(daemon_.get(), "peer of this test", "", 100,
                           SocketWatch::Encryption::kNone);
    for (size_t i = 0; i < kCloseReasons; ++i) before_[i] = Count(i);
  }

  // One look after so many seconds.
  void Look(int64_t seconds = 1) {
    now_ns_ += seconds * 1'000'000'000;
    SocketWatch::Get().CloseSlow(limits_, now_ns_);
  }
  void LookTimes(int count) {
    for (int i = 0; i < count; ++i) Look();
  }
  bool IsClosed(CloseReason reason) const {
    const auto index = static_cast<size_t>(reason);
    return Count(index) > before_[index];
  }
  bool IsOpen() const {
    for (size_t i = 0; i < kCloseReasons; ++i) {
      if (Count(i) != before_[i]) return false;
    }
    return true;
  }

  // The daemon's end sends, or the peer does and the daemon's end reads it.
  ssize_t Send(std::string_view bytes) { return Send(bytes, daemon_.get()); }
  static ssize_t Send(std::string_view bytes, int descriptor) {
    iovec part = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return sendmsg(descriptor, &message, MSG_NOSIGNAL);
  }
  ssize_t Receive(std::string_view bytes) {
    ssize_t last = 0;
    while (!bytes.empty()) {
      const std::string_view some = bytes.substr(0, 4096);
      const ssize_t sent = send(peer_.get(), some.data(), some.size(), MSG_NOSIGNAL);
      EXPECT_EQ(sent, static_cast<ssize_t>(some.size()));
      bytes = bytes.substr(some.size());
      std::array<char, 1000> first;
      std::array<char, 4096> second;
      std::array<iovec, 2> parts = {{{.iov_base = first.data(), .iov_len = first.size()},
                                     {.iov_base = second.data(), .iov_len = second.size()}}};
      msghdr message = {};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      last = recvmsg(daemon_.get(), &message, 0);
    }
    return last;
  }

  // More than may wait for ever, of a message that is longer, with both windows open.
  void HoldHalf(int frames = 5) {
    Receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, "") + Frame(1, 1, "headers"));
    Send(Frame(4, 0, "") + Frame(8, 0, Number(1 << 20, 4)) + Frame(8, 1, Number(1 << 20, 4)));
    Receive(Frame(0, 1, Number(0, 1) + Number(1 << 20, 4)));
    for (int i = 0; i < frames; ++i) Receive(Frame(0, 1, std::string(16'384, 'x')));
  }

  // Sends until the socket takes no more.
  void Fill() {
    const std::string some(4096, 'x');
    while (Send(some) == static_cast<ssize_t>(some.size())) continue;
    ASSERT_EQ(errno, EAGAIN);
  }
  // The peer reads so many bytes, or all.
  void Read(size_t bytes) {
    std::vector<char> some(4096);
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = read(peer_.get(), some.data(), some.size());
      if (count <= 0) return;
      done += static_cast<size_t>(count);
    }
  }

  FileDescriptor daemon_;
  FileDescriptor peer_;
  SocketWatch::Limits limits_ = {.stall = absl::Seconds(30),
                                 .patience = absl::Seconds(10),
                                 .timeout = absl::Seconds(10),
                                 .min_bytes_per_second = 1};

 private:
  static int64_t Count(size_t reason) {
    return SocketWatch::Get().closed(static_cast<CloseReason>(reason));
  }

  std::array<int64_t, kCloseReasons> before_ = {};
  int64_t now_ns_ = 1'000'000'000;
};

TEST_F(SocketWatchTest, WhoHoldsBackTheRestIsClosedAfterTheTime) {
  Look();
  HoldHalf();
  Look();  // Which sees what came.
  LookTimes(29);
  EXPECT_TRUE(IsOpen());
  Look();
  EXPECT_TRUE(IsClosed(CloseReason::kStalled));
  linger at_once = {};
  socklen_t bytes = sizeof(at_once);
  ASSERT_EQ(getsockopt(daemon_.get(), SOL_SOCKET, SO_LINGER, &at_once, &bytes), 0);
  EXPECT_EQ(at_once.l_onoff, 1);  // What waits for the peer ends with the socket.
  EXPECT_EQ(at_once.l_linger, 0);
}

TEST_F(SocketWatchTest, LessThanARecordOfTlsIsProgress) {
  HoldHalf();
  Look();
  for (int i = 0; i < 5; ++i) {
    LookTimes(29);
    Receive(Frame(0, 1, std::string(8192, 'x')));
  }
  LookTimes(30);
  EXPECT_TRUE(IsOpen());
  LookTimes(1);
  EXPECT_TRUE(IsClosed(CloseReason::kStalled));
}

TEST_F(SocketWatchTest, WhoHoldsMuchMustSendMuch) {
  HoldHalf(32);  // 512 KiB, so each timeout must bring another 16 KiB.
  Look();
  for (int i = 0; i < 3; ++i) {
    LookTimes(29);
    Receive(Frame(0, 1, std::string(16'384, 'x')) + Frame(0, 1, std::string(2'048, 'x')));
  }
  Look();
  LookTimes(29);
  Receive(Frame(0, 1, std::string(8'192, 'x')));
  EXPECT_TRUE(IsOpen());
  Look();
  EXPECT_TRUE(IsClosed(CloseReason::kStalled));
}

TEST_F(SocketWatchTest, TheHeadOfAFrameIsNoProgress) {
  HoldHalf();
  Look();
  LookTimes(29);
  Receive(Frame(0, 1, std::string(16'384, 'x')).substr(0, 20));
  Look();
  EXPECT_TRUE(IsClosed(CloseReason::kStalled));
}

TEST_F(SocketWatchTest, ALateLookIsNoTimeOfAPeers) {
  HoldHalf();
  Fill();
  Look();
  for (int i = 0; i < 9; ++i) Look(1000);
  EXPECT_TRUE(IsOpen());
  Look(1000);
  EXPECT_TRUE(IsClosed(CloseReason::kUnread));
}

TEST_F(SocketWatchTest, ALateLookIsNoTimeOfAnUpload) {
  HoldHalf();
  Look();
  for (int i = 0; i < 29; ++i) Look(1000);
  EXPECT_TRUE(IsOpen());
  Look(1000);
  EXPECT_TRUE(IsClosed(CloseReason::kStalled));
}

TEST_F(SocketWatchTest, WhatThePeerTakesIsProgressBeforeMoreIsSent) {
  Fill();
  Look();
  LookTimes(9);
  Read(32 << 10);  // Too little for more to be sent.
  LookTimes(10);
  EXPECT_TRUE(IsOpen());
  Look();
  EXPECT_TRUE(IsClosed(CloseReason::kUnread));
}

TEST_F(SocketWatchTest, WhatAPeerOwesEndsWithTheAnswer) {
  limits_.patience = absl::Hours(1);
  limits_.min_bytes_per_second = 1 << 20;
  Look();
  for (int i = 0; i < 4; ++i) {
    Fill();
    LookTimes(8);
    EXPECT_TRUE(IsOpen()) << i;
    Read(SIZE_MAX);
    Send("the end");
    Look();
    Read(SIZE_MAX);
  }
  Fill();
  LookTimes(12);
  EXPECT_TRUE(IsClosed(CloseReason::kUnread));
}

TEST_F(SocketWatchTest, WithoutADescriptorItIsClosedLater) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {.rlim_cur = 1, .rlim_max = limit.rlim_max};
  Receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool can_open = fcntl(daemon_.get(), F_DUPFD_CLOEXEC, 0) >= 0;
  const ssize_t received = Receive(std::string("\1\0\1\1\0\0\0\0\1", 9));
  Look();
  const bool is_open = IsOpen();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(can_open);
  EXPECT_EQ(received, -1);
  EXPECT_TRUE(is_open);
  Look();
  EXPECT_TRUE(IsClosed(CloseReason::kFrames));
  char byte = 0;
  EXPECT_EQ(read(peer_.get(), &byte, 1), 0);
}

// Many connections would otherwise cost some hundred thousand system calls a second.
TEST_F(SocketWatchTest, ConnectionsOnWhichNothingWaitsCostNoSystemCalls) {
  constexpr int kMore = 100;
  std::vector<FileDescriptor> open;
  for (int i = 0; i < kMore; ++i) {
    std::array<int, 2> pair = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    for (const int end : pair) open.emplace_back(end);
    SocketWatch::Get().Add(pair[0], "peer of this test", "", 100, SocketWatch::Encryption::kNone);
  }
  // As gRPC sends its settings: otherwise it would seem to use other functions.
  for (int i = 0; i < kMore; ++i) Send(Frame(4, 0, ""), open[static_cast<size_t>(2 * i)].get());
  Send(Frame(4, 0, ""));
  const auto calls_of_looks = [this] {
    const int64_t before = system_calls;
    LookTimes(SocketWatch::kLooksToForgetAll);
    return system_calls - before;
  };
  calls_of_looks();  // Forgets what other tests left.
  // One for each, to find those that have ended.
  const auto idle = static_cast<int64_t>(SocketWatch::Get().ReceivedBytes().size());
  EXPECT_GT(idle, kMore);
  EXPECT_EQ(calls_of_looks(), idle);
  Send(Frame(0, 1, "an answer that was taken"));
  EXPECT_EQ(calls_of_looks(), idle);
  // Each look asks whether it is the same connection, and whether gRPC has read what came.
  constexpr int kOtherLooks = SocketWatch::kLooksToForgetAll - 1;
  HoldHalf();
  EXPECT_EQ(calls_of_looks(), idle + 2 * kOtherLooks);
  for (int i = 0; i < 59; ++i) Receive(Frame(0, 1, std::string(16'384, 'x')));
  EXPECT_EQ(calls_of_looks(), idle);
  // And how much waits.
  limits_.patience = limits_.timeout = absl::Hours(1);
  Fill();
  EXPECT_EQ(calls_of_looks(), idle + 2 * kOtherLooks + 1);
}

TEST_F(SocketWatchTest, AnIdleConnectionThatHasEndedIsForgottenWithinAFewLooks) {
  Send(Frame(4, 0, ""));  // Otherwise it would seem that gRPC uses other functions.
  LookTimes(SocketWatch::kLooksToForgetAll);
  const size_t before = SocketWatch::Get().ReceivedBytes().size();
  daemon_ = FileDescriptor();
  LookTimes(SocketWatch::kLooksToForgetAll);
  EXPECT_LT(SocketWatch::Get().ReceivedBytes().size(), before);
}

// What it holds of its peer's room must not be held any longer.
TEST_F(SocketWatchTest, AnUnfinishedConnectionThatHasEndedIsForgottenAtOnce) {
  HoldHalf();
  LookTimes(SocketWatch::kLooksToForgetAll);
  const size_t before = SocketWatch::Get().ReceivedBytes().size();
  daemon_ = FileDescriptor();
  Look();
  EXPECT_EQ(SocketWatch::Get().ReceivedBytes().size(), before - 1);
}

class PeerBudgetsTest : public testing::Test {
 protected:
  static std::string Name(int i) { return "peer " + std::to_string(i); }

  PeerBudgets<TokenBucket> budgets_;
};

// Quadratic time would be that of 50 million.
TEST_F(PeerBudgetsTest, TakeConstantTimeOnAverageHoweverManyPeersThereAre) {
  constexpr int kPeers = 10'000;
  std::vector<std::shared_ptr<TokenBucket>> held;
  for (int i = 0; i < kPeers; ++i) held.push_back(budgets_.Of(Name(i), 1));
  EXPECT_EQ(budgets_.size(), static_cast<size_t>(kPeers));
  EXPECT_LE(budgets_.examined(), 2 * kPeers);
  for (int i = 0; i < kPeers; ++i) EXPECT_EQ(budgets_.Of(Name(i), 1), held[static_cast<size_t>(i)]);
  EXPECT_LE(budgets_.examined(), 2 * kPeers);
}

TEST_F(PeerBudgetsTest, AreForgottenOnceNobodyHasThem) {
  constexpr int kPeers = 100'000;
  size_t most = 0;
  for (int i = 0; i < kPeers; ++i) {
    budgets_.Of(Name(i), 1);
    most = std::max(most, budgets_.size());
  }
  EXPECT_LE(most, 64u);
  EXPECT_LE(budgets_.examined(), 2 * kPeers);
}

TEST_F(PeerBudgetsTest, AreKeptUntilWhatThePeerDidIsForgiven) {
  constexpr TokenBucket::Rate kRate = TokenBucket::EachSecond(1);
  constexpr int64_t kSecondNs = 1'000'000'000;
  PeerBudgets<FrameBudget> frames;
  budgets_.Of("accepts", 1)->Charge(1, kRate, 1);
  frames.Of("resets", 1)->resets.Charge(1, kRate, 1);
  const auto add_others = [&](int64_t now_ns) {
    for (int i = 0; i < 1000; ++i) {
      budgets_.Of(Name(i), now_ns);
      frames.Of(Name(i), now_ns);
    }
  };
  add_others(kSecondNs);
  EXPECT_TRUE(budgets_.Of("accepts", 1)->is_used());
  EXPECT_TRUE(frames.Of("resets", 1)->resets.is_used());
  add_others(kSecondNs + 1);
  EXPECT_FALSE(budgets_.Of("accepts", 1)->is_used());
  EXPECT_FALSE(frames.Of("resets", 1)->resets.is_used());
}

// A connection over TCP, which the daemon's end has accepted.
class ProgressTest : public testing::Test {
 protected:
  ProgressTest() {
    const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage address = {};
    address.ss_family = AF_INET;
    socklen_t bytes = sizeof(sockaddr_in);
    sockaddr* const plain = reinterpret_cast<sockaddr*>(&address);
    // 0.0.0.0 and any port: includes the loopback interface.
    EXPECT_EQ(bind(listener.get(), plain, bytes), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), plain, &bytes), 0);
    peer_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(peer_.get(), plain, bytes), 0);
    daemon_ = FileDescriptor(accept4(listener.get(), plain, &bytes, SOCK_CLOEXEC));
    EXPECT_TRUE(daemon_.is_open());
    name_ = GrpcNameOf(address);
    EXPECT_EQ(name_.rfind("ipv4:127.0.0.1:", 0), 0u) << name_;
  }

  void Watch() { Watch(daemon_.get(), name_); }
  static void Watch(int descriptor, const std::string& name) {
    SocketWatch::Get().Add(descriptor, "a", name, 100, SocketWatch::Encryption::kTls);
  }
  std::optional<int64_t> Taken() const { return SocketWatch::Get().TakenBytes(name_); }

  static void Pass(int from, int to, size_t count) {
    std::vector<char> bytes(count);
    iovec part = {.iov_base = bytes.data(), .iov_len = count};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    ASSERT_EQ(sendmsg(from, &message, MSG_NOSIGNAL), static_cast<ssize_t>(count));
    ASSERT_EQ(recvmsg(to, &message, MSG_WAITALL), static_cast<ssize_t>(count));
  }

  FileDescriptor daemon_;
  FileDescriptor peer_;
  std::string name_;
};

TEST_F(ProgressTest, TellsWhatTheOtherEndHasTaken) {
  EXPECT_EQ(Taken(), std::nullopt);
  Watch();
  EXPECT_EQ(Taken(), std::nullopt) << "gRPC may send by other functions";
  Pass(daemon_.get(), peer_.get(), 1000);
  ASSERT_TRUE(Eventually([&] { return Taken() == 1000; }));
  Pass(daemon_.get(), peer_.get(), 500);
  ASSERT_TRUE(Eventually([&] { return Taken() == 1500; }));

  EXPECT_EQ(SocketWatch::Get().TakenBytes("ipv4:127.0.0.1:1"), std::nullopt);
  EXPECT_EQ(SocketWatch::Get().TakenBytes(""), std::nullopt);
  const int number = daemon_.get();
  daemon_ = FileDescriptor();
  // Also a socket, but not that of this connection.
  const FileDescriptor other(fcntl(peer_.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(other.get(), number);
  EXPECT_EQ(Taken(), std::nullopt);
}

TEST_F(ProgressTest, WhatWaitsForTheOtherEndIsNotTaken) {
  Watch();
  Pass(daemon_.get(), peer_.get(), 1000);
  const std::string some(64 << 10, 'x');
  iovec part = {.iov_base = const_cast<char*>(some.data()), .iov_len = some.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  int64_t sent = 1000;
  while (true) {
    const ssize_t count = sendmsg(daemon_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) break;
    sent += count;
  }
  EXPECT_LT(Taken(), sent);
  std::vector<char> read_bytes(static_cast<size_t>(sent - 1000));
  ASSERT_EQ(recv(peer_.get(), read_bytes.data(), read_bytes.size(), MSG_WAITALL),
            static_cast<ssize_t>(read_bytes.size()));
  ASSERT_TRUE(Eventually([&] { return Taken() == sent; }));
}

TEST_F(ProgressTest, ALaterConnectionHasTheName) {
  Watch();
  Pass(daemon_.get(), peer_.get(), 1000);
  std::array<int, 2> pair = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const FileDescriptor later(pair[0]);
  const FileDescriptor other_end(pair[1]);
  Watch(later.get(), name_);
  Pass(later.get(), other_end.get(), 7);
  EXPECT_EQ(Taken(), 7);
  daemon_ = FileDescriptor();
  const SocketWatch::Limits none = {
      .stall = absl::Hours(1), .patience = absl::Hours(1), .timeout = absl::Hours(1)};
  // Which forgets the earlier one, and not the name.
  for (int i = 0; i < SocketWatch::kLooksToForgetAll; ++i) SocketWatch::Get().CloseSlow(none, 1);
  EXPECT_EQ(Taken(), 7);
}

TEST_F(ProgressTest, CountsWhatArrivesOnEachConnection) {
  const std::map<uint64_t, int64_t> before = SocketWatch::Get().ReceivedBytes();
  Watch();
  Pass(peer_.get(), daemon_.get(), 300);
  Pass(peer_.get(), daemon_.get(), 33);
  std::vector<int64_t> received;
  for (const auto& [number, bytes] : SocketWatch::Get().ReceivedBytes()) {
    if (!before.contains(number)) received.push_back(bytes);
  }
  EXPECT_EQ(received, std::vector<int64_t>{333});
}

}  // namespace
}  // namespace gemmd
