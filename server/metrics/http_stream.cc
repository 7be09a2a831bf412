// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace gemmd {
namespace {

class PlainStream final : public HttpStream {
 public:
  explicit PlainStream(int socket) : socket_(socket) {}

  Result Receive(absl::Span<char> bytes) override {
    awaited_ = POLLIN;
    return ResultOf(recv(socket_, bytes.data(), bytes.size(), 0));
  }
  Result Send(std::string_view bytes) override {
    awaited_ = POLLOUT;
    return ResultOf(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  // The listener ends its side of the connection, which says it all.
  Progress End() override { return Progress::kMoved; }
  short awaited() const override { return awaited_; }

 private:
  static Result ResultOf(ssize_t bytes) {
    if (bytes > 0) return {Progress::kMoved, static_cast<size_t>(bytes)};
    const bool must_wait = bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    return {must_wait ? Progress::kWaits : Progress::kOver};
  }

  const int socket_;
  short awaited_ = POLLIN;
};

}  // namespace

std::unique_ptr<HttpStream> MakePlainStream(int socket) {
  return std::make_unique<PlainStream>(socket);
}

}  // namespace gemmd
