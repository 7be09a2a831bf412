// SPDX-License-Identifier: Apache-2.0
#include "tests/server/wire/http2_peer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace gemmd {
namespace {
constexpr size_t kFrameHeaderBytes = 9;
}  // namespace

Http2Peer::Http2Peer(int port) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Data sent in several parts must not wait for acknowledgements.
  const int is_on = 1;
  EXPECT_EQ(setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &is_on, sizeof(is_on)), 0);
  EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

Http2Peer::~Http2Peer() { close(socket_); }

void Http2Peer::Send(const std::string& bytes) {
  // The connection of a peer that was shut out may be gone; WaitUntilClosed detects that.
  static_cast<void>(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

void Http2Peer::SendFrame(int type, int flags, const std::string& payload, uint32_t stream) {
  std::string frame;
  for (const int shift : {16, 8, 0})
    frame.push_back(static_cast<char>(payload.size() >> shift & 0xff));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift & 0xff));
  Send(frame + payload);
}

void Http2Peer::Greet() {
  Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  SendFrame(kSettings, 0, "");
  SendFrame(kSettings, kAck, "");
}

bool Http2Peer::Fill(absl::Time limit) {
  const int64_t left_ms = absl::ToInt64Milliseconds(limit - absl::Now());
  pollfd readable = {.fd = socket_, .events = POLLIN, .revents = 0};
  if (poll(&readable, 1, static_cast<int>(std::max<int64_t>(0, left_ms))) <= 0) return false;
  char bytes[4096];
  const ssize_t count = recv(socket_, bytes, sizeof(bytes), 0);
  if (count <= 0) {
    closed_ = true;
    return false;
  }
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

std::optional<Http2Peer::Frame> Http2Peer::ReadFrame(absl::Duration timeout) {
  const absl::Time limit = absl::Now() + timeout;
  while (true) {
    if (buffer_.size() >= kFrameHeaderBytes) {
      const auto byte = [this](size_t i) { return static_cast<unsigned char>(buffer_[i]); };
      const size_t length = static_cast<size_t>(byte(0) << 16 | byte(1) << 8 | byte(2));
      if (buffer_.size() >= kFrameHeaderBytes + length) {
        Frame frame = {byte(3), byte(4), buffer_.substr(kFrameHeaderBytes, length)};
        buffer_.erase(0, kFrameHeaderBytes + length);
        return frame;
      }
    }
    if (!Fill(limit)) return std::nullopt;
  }
}

bool Http2Peer::WaitUntilClosed(absl::Duration timeout) {
  const absl::Time limit = absl::Now() + timeout;
  while (Fill(limit)) buffer_.clear();
  return closed_;
}

}  // namespace gemmd
