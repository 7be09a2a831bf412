// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_listener.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// The pause before the next try where no file descriptor is left.
constexpr int64_t kAcceptPauseNs = 100'000'000;

struct Endpoint {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
};

std::optional<Endpoint> ParseEndpoint(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos) return std::nullopt;
  std::string host(address.substr(0, colon));
  const std::string_view digits = address.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  Endpoint endpoint;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    sockaddr_in6 v6 = {};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    host = host.substr(1, host.size() - 2);
    if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return std::nullopt;
    endpoint.bytes = sizeof(v6);
    std::memcpy(&endpoint.storage, &v6, sizeof(v6));
    return endpoint;
  }
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return std::nullopt;
  endpoint.bytes = sizeof(v4);
  std::memcpy(&endpoint.storage, &v4, sizeof(v4));
  return endpoint;
}

absl::StatusOr<FileDescriptor> ListenOn(const Endpoint& endpoint) {
  const auto last_error = [] {
    return absl::UnavailableError(std::error_code(errno, std::generic_category()).message());
  };
  FileDescriptor made(
      socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return last_error();
  // A daemon that starts again need not wait for the end of old connections.
  const int on = 1;
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto* const address = reinterpret_cast<const sockaddr*>(&endpoint.storage);
  if (bind(made.get(), address, endpoint.bytes) != 0) return last_error();
  if (listen(made.get(), SOMAXCONN) != 0) return last_error();
  return made;
}

int PortOf(int socket) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof(storage);
  getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &bytes);
  // The port lies at the same place in addresses of IPv4 and of IPv6.
  sockaddr_in v4 = {};
  std::memcpy(&v4, &storage, sizeof(v4));
  return ntohs(v4.sin_port);
}

bool MustWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

absl::Status CheckHttpAddress(std::string_view address) {
  if (ParseEndpoint(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      GotWant("metrics-listen", address, "an IP address and a port: 127.0.0.1:8471, [::1]:8471"));
}

absl::StatusOr<HttpSocket> ListenForHttp(std::string_view address) {
  RETURN_IF_ERROR(CheckHttpAddress(address));
  absl::StatusOr<FileDescriptor> socket = ListenOn(*ParseEndpoint(address));
  if (!socket.ok()) {
    return absl::UnavailableError(Concat("metrics-listen: cannot listen on ", address, ": ",
                                         std::string(socket.status().message())));
  }
  std::string bound = Concat(address.substr(0, address.rfind(':')), ":", PortOf(socket->get()));
  return HttpSocket{*std::move(socket), std::move(bound)};
}

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(HttpSocket socket,
                                                                  PageMaker make_page,
                                                                  const Clock& clock,
                                                                  HttpLimits limits) {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) {
    return absl::UnavailableError("metrics-listen: no file descriptor is left");
  }
  return std::unique_ptr<HttpListener>(
      new HttpListener(std::move(socket), std::move(wake), std::move(make_page), clock, limits));
}

HttpListener::HttpListener(HttpSocket socket, FileDescriptor wake, PageMaker make_page,
                           const Clock& clock, HttpLimits limits)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      make_page_(std::move(make_page)),
      clock_(clock),
      limits_(limits),
      thread_([this] { Run(); }) {}

HttpListener::~HttpListener() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void HttpListener::Run() {
  pthread_setname_np(pthread_self(), "gemmd-metrics");
  std::vector<pollfd> files;
  while (true) {
    const int64_t now_ns = clock_.NowNs();
    const bool may_accept = now_ns >= accept_again_ns_;
    int64_t until_ns = now_ns < accept_again_ns_ ? accept_again_ns_ : kNoDeadlineNs;
    // poll leaves out a negative file descriptor.
    files = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
             {.fd = may_accept ? socket_.socket.get() : -1, .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      const short events = connection.stage == Stage::kAnswer ? POLLOUT : POLLIN;
      files.push_back({.fd = connection.socket.get(), .events = events, .revents = 0});
      until_ns = std::min(until_ns, connection.deadline_ns);
    }
    const int64_t wait_ns = std::max(until_ns - now_ns, int64_t{0});
    const timespec limit = {.tv_sec = wait_ns / 1'000'000'000, .tv_nsec = wait_ns % 1'000'000'000};
    ppoll(files.data(), files.size(), until_ns == kNoDeadlineNs ? nullptr : &limit, nullptr);
    if (files[0].revents != 0) return;
    auto file = files.begin() + 2;
    for (auto connection = connections_.begin(); connection != connections_.end(); ++file) {
      const bool is_late = clock_.NowNs() >= connection->deadline_ns;
      const bool goes_on = !is_late && (file->revents == 0 || Advance(*connection));
      connection = goes_on ? std::next(connection) : connections_.erase(connection);
    }
    if (files[1].revents != 0) Accept();
  }
}

void HttpListener::Accept() {
  FileDescriptor accepted(
      accept4(socket_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.is_open()) {
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(accepted);
    connection.deadline_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(limits_.duration);
    if (connections_.size() <= limits_.connections) return;
    // The oldest connection without an answer under way is closed, so that silent peers are evicted
    // before they delay others. Where all have one, this finds the new connection.
    connections_.erase(std::find_if(connections_.begin(), connections_.end(),
                                    [](const auto& c) { return c.stage != Stage::kAnswer; }));
  } else if (!MustWait() && errno != ECONNABORTED) {
    accept_again_ns_ = clock_.NowNs() + kAcceptPauseNs;
  }
}

bool HttpListener::Advance(Connection& connection) const {
  if (connection.stage != Stage::kAnswer && !Receive(connection)) return false;
  return connection.stage != Stage::kAnswer || Send(connection);
}

bool HttpListener::Receive(Connection& connection) const {
  char part[4096];
  const ssize_t bytes = recv(connection.socket.get(), part, sizeof(part), 0);
  if (bytes < 0) return MustWait();
  if (bytes == 0) return false;
  if (connection.stage == Stage::kEnd) return true;  // What comes after the request is ignored.
  connection.received.append(part, static_cast<size_t>(bytes));
  if (IsWholeHead(connection.received)) {
    connection.answer = AnswerTo(connection.received, make_page_);
    connection.stage = Stage::kAnswer;
  }
  return true;
}

bool HttpListener::Send(Connection& connection) {
  while (connection.sent < connection.answer.size()) {
    const ssize_t bytes = send(connection.socket.get(), connection.answer.data() + connection.sent,
                               connection.answer.size() - connection.sent, MSG_NOSIGNAL);
    if (bytes < 0) return MustWait();
    connection.sent += static_cast<size_t>(bytes);
  }
  connection.answer = {};
  connection.stage = Stage::kEnd;
  return shutdown(connection.socket.get(), SHUT_WR) == 0;
}

}  // namespace gemmd
