// SPDX-License-Identifier: Apache-2.0
#include "server/system/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace gemmd {
namespace {

std::optional<int64_t> PositiveNumber(std::string_view digits) {
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [parsed, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || parsed != end || number < 1) return std::nullopt;
  return number;
}

}  // namespace

ServiceManager::ServiceManager(std::string_view address) : address_(address) {
  const bool is_usable = (address.starts_with('/') || address.starts_with('@')) &&
                         address.size() < sizeof(sockaddr_un::sun_path);
  if (!is_usable) return;
  if (address_.front() == '@') address_.front() = '\0';
  socket_ = FileDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

void ServiceManager::Tell(std::string_view lines) const {
  if (!socket_.is_open()) return;
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  address_.copy(name.sun_path, address_.size());
  const size_t bytes = offsetof(sockaddr_un, sun_path) + address_.size();
  sendto(socket_.get(), lines.data(), lines.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(bytes));
}

absl::Duration WatchdogTime(std::string_view microseconds, std::string_view pid) {
  const std::optional<int64_t> time = PositiveNumber(microseconds);
  const bool is_meant = pid.empty() || PositiveNumber(pid) == int64_t{getpid()};
  return time && is_meant ? std::max(absl::Microseconds(*time), kLeastWatchdogTime)
                          : absl::InfiniteDuration();
}

}  // namespace gemmd
