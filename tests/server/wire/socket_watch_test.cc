// SPDX-License-Identifier: Apache-2.0
//
// Which connections are closed for their time, by looks at a simulated clock and sockets without
// gRPC: the process's recvmsg and sendmsg are those that the daemon puts in front.
#include "server/wire/socket_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/system/files.h"

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
    SocketWatch::Get().Add(daemon_.get(), "peer of this test", 100, SocketWatch::Encryption::kNone);
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
  ssize_t Send(std::string_view bytes) {
    iovec part = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return sendmsg(daemon_.get(), &message, MSG_NOSIGNAL);
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
  void HoldHalf() {
    Receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, "") + Frame(1, 1, "headers"));
    Send(Frame(4, 0, "") + Frame(8, 0, Number(1 << 20, 4)) + Frame(8, 1, Number(1 << 20, 4)));
    Receive(Frame(0, 1, Number(0, 1) + Number(1 << 20, 4)));
    for (int i = 0; i < 5; ++i) Receive(Frame(0, 1, std::string(16'384, 'x')));
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

}  // namespace
}  // namespace gemmd
