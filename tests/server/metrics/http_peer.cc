// SPDX-License-Identifier: Apache-2.0
#include "tests/server/metrics/http_peer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/numbers.h"

namespace gemmd {

std::optional<Page> PageAt(std::string_view path) {
  if (path == "/small") return Page{.body = "body\n"};
  if (path == "/large") return Page{.body = std::string(kLargePageBytes, 'x')};
  return std::nullopt;
}

HttpPeerSocket::HttpPeerSocket(const std::string& address, const char* from)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  EXPECT_EQ(inet_pton(AF_INET, from, &own.sin_addr), 1) << from;
  EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
  const timeval limit = {.tv_sec = 60, .tv_usec = 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  is_connected_ = connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

bool HttpPeerSocket::Say(const std::string& text) const {
  return send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

bool HttpPeerSocket::IsOpen() const {
  char byte = 0;
  return recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

}  // namespace gemmd
