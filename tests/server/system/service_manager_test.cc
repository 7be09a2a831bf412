// SPDX-License-Identifier: Apache-2.0
#include "server/system/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

// A datagram socket with an abstract name.
FileDescriptor Manager(const std::string& name) {
  FileDescriptor made(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(bind(made.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  return made;
}

std::string Receive(const FileDescriptor& manager) {
  std::array<char, 1000> text;
  const ssize_t bytes = recv(manager.get(), text.data(), text.size(), 0);
  return bytes < 0 ? "nothing" : std::string(text.data(), static_cast<size_t>(bytes));
}

TEST(ServiceManagerTest, IsToldInDatagrams) {
  const std::string name = absl::StrCat("gemmd-manager-", getpid());
  const FileDescriptor manager = Manager(name);
  const ServiceManager told("@" + name);
  told.Tell("READY=1\nSTATUS=Serves");
  told.Tell("WATCHDOG=1");
  EXPECT_EQ(Receive(manager), "READY=1\nSTATUS=Serves");
  EXPECT_EQ(Receive(manager), "WATCHDOG=1");
  EXPECT_EQ(Receive(manager), "nothing");
}

TEST(ServiceManagerTest, MayBeMissing) {
  for (const std::string& address :
       {std::string(), std::string("relative"), std::string("@gemmd-nobody"),
        "/" + std::string(200, 'x'), std::string("/dev/null/socket")}) {
    ServiceManager(address).Tell("READY=1");
  }
}

TEST(WatchdogTimeTest, IsForThisProcess) {
  const std::string self = absl::StrCat(getpid());
  EXPECT_EQ(WatchdogTime("30000000", self), absl::Seconds(30));
  EXPECT_EQ(WatchdogTime("30000000", ""), absl::Seconds(30));
  EXPECT_EQ(WatchdogTime("30000000", "1"), absl::InfiniteDuration());
  EXPECT_EQ(WatchdogTime("1", self), kMinWatchdogTime);
  for (const char* bad : {"", "0", "-1", "soon", "1s"}) {
    EXPECT_EQ(WatchdogTime(bad, self), absl::InfiniteDuration()) << bad;
  }
}

}  // namespace
}  // namespace gemmd
