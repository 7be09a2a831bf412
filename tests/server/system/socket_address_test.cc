// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "server/system/files.h"
#include "server/system/sockets.h"

namespace gemmd {
namespace {

sockaddr_storage AddressOf(const std::string& text, int port = 0) {
  sockaddr_storage storage = {};
  sockaddr_in v4 = {};
  sockaddr_in6 v6 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&storage, &v4, sizeof(v4));
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr), 1) << text;
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&storage, &v6, sizeof(v6));
  }
  return storage;
}

bool IsLoopbackText(const std::string& text) {
  const sockaddr_storage storage = AddressOf(text);
  return IsLoopback(reinterpret_cast<const sockaddr*>(&storage));
}

TEST(SocketAddressTest, OnlyThisMachineReachesLoopback) {
  for (const char* here : {"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopbackText(here)) << here;
  }
  for (const char* far : {"0.0.0.0", "::", "126.255.255.255", "128.0.0.1", "10.0.0.127", "::2",
                          "::127.0.0.1", "::ffff:128.0.0.1", "fe80::1", "::ffff:0.0.0.0"}) {
    EXPECT_FALSE(IsLoopbackText(far)) << far;
  }
  sockaddr_un path = {};
  path.sun_family = AF_UNIX;
  EXPECT_FALSE(IsLoopback(reinterpret_cast<const sockaddr*>(&path)));
}

TEST(SocketAddressTest, AFreePortIsTakenOnce) {
  const sockaddr_storage any = AddressOf("127.0.0.1");
  const FileDescriptor first =
      ListenOn(reinterpret_cast<const sockaddr*>(&any), sizeof(sockaddr_in));
  ASSERT_TRUE(first.is_open());
  const int port = PortOf(first.get());
  EXPECT_GT(port, 0);
  const sockaddr_storage taken = AddressOf("127.0.0.1", port);
  const FileDescriptor second =
      ListenOn(reinterpret_cast<const sockaddr*>(&taken), sizeof(sockaddr_in));
  EXPECT_FALSE(second.is_open());
  EXPECT_EQ(errno, EADDRINUSE);
}

}  // namespace
}  // namespace gemmd
