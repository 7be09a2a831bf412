// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_listener.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

namespace gemmd {
namespace {

// The pause before the next try where no file descriptor is left.
constexpr int64_t kAcceptPauseNs = 100'000'000;

using Progress = HttpStream::Progress;

bool MustWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Whether the peer has more to say, of which nothing counts any longer.
bool Discard(int socket) {
  char part[4096];
  const ssize_t bytes = recv(socket, part, sizeof(part), 0);
  return bytes > 0 || (bytes < 0 && MustWait());
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(HttpSocket socket,
                                                                  PageMaker make_page,
                                                                  const Clock& clock,
                                                                  HttpLimits limits,
                                                                  HttpStreamMaker make_stream) {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) {
    return absl::UnavailableError("metrics-listen: no file descriptor is left");
  }
  return std::unique_ptr<HttpListener>(new HttpListener(std::move(socket), std::move(wake),
                                                        std::move(make_page), clock, limits,
                                                        std::move(make_stream)));
}

HttpListener::HttpListener(HttpSocket socket, FileDescriptor wake, PageMaker make_page,
                           const Clock& clock, HttpLimits limits, HttpStreamMaker make_stream)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      make_page_(std::move(make_page)),
      clock_(clock),
      limits_(limits),
      make_stream_(std::move(make_stream)),
      thread_([this] { Run(); }) {}

HttpListener::~HttpListener() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void HttpListener::Run() {
  pthread_setname_np(pthread_self(), "gemmd-metrics");
  // OpenSSL writes without MSG_NOSIGNAL; a peer that has gone is seen by the error.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::vector<pollfd> files;
  while (true) {
    const int64_t now_ns = clock_.NowNs();
    const bool may_accept = now_ns >= accept_again_ns_;
    int64_t until_ns = now_ns < accept_again_ns_ ? accept_again_ns_ : kNoDeadlineNs;
    // poll leaves out a negative file descriptor.
    files = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
             {.fd = may_accept ? socket_.socket.get() : -1, .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      files.push_back(
          {.fd = connection.socket.get(),
           .events = connection.stage == Stage::kEnd ? short{POLLIN} : connection.stream->awaited(),
           .revents = 0});
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
    std::unique_ptr<HttpStream> stream = make_stream_(accepted.get());
    if (stream == nullptr) return;
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(accepted);
    connection.stream = std::move(stream);
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
  if (connection.stage == Stage::kEnd) return Discard(connection.socket.get());
  if (connection.stage == Stage::kRequest && !Receive(connection)) return false;
  return connection.stage != Stage::kAnswer || Send(connection);
}

// Takes all that has come of the head, since what lies in a record of TLS that was read wakes no
// poll; a head's greatest length bounds it.
bool HttpListener::Receive(Connection& connection) const {
  char part[4096];
  while (!IsWholeHead(connection.received)) {
    const HttpStream::Result result = connection.stream->Receive(absl::MakeSpan(part));
    if (result.progress == Progress::kWaits) return true;
    if (result.progress == Progress::kRefused) return AwaitEnd(connection);
    if (result.progress == Progress::kOver) return false;
    connection.received.append(part, result.bytes);
  }
  connection.answer = AnswerTo(connection.received, make_page_);
  connection.stage = Stage::kAnswer;
  return true;
}

bool HttpListener::Send(Connection& connection) {
  while (connection.sent < connection.answer.size()) {
    const HttpStream::Result result =
        connection.stream->Send(std::string_view(connection.answer).substr(connection.sent));
    if (result.progress == Progress::kWaits) return true;
    if (result.progress != Progress::kMoved) return false;
    connection.sent += result.bytes;
  }
  const Progress end = connection.stream->End();
  return end == Progress::kWaits || (end == Progress::kMoved && AwaitEnd(connection));
}

bool HttpListener::AwaitEnd(Connection& connection) {
  connection.received = {};
  connection.answer = {};
  connection.stage = Stage::kEnd;
  return shutdown(connection.socket.get(), SHUT_WR) == 0;
}

}  // namespace gemmd
