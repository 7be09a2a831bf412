// SPDX-License-Identifier: Apache-2.0
//
// A small HTTP server on one thread of its own. It takes a few connections at once, each with a
// time limit, handshakes of TLS included, so that a silent or slow peer delays nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/metrics/http_answer.h"
#include "server/metrics/http_socket.h"
#include "server/metrics/http_stream.h"
#include "server/system/clock.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

struct HttpLimits {
  size_t connections = 16;                      // How many there are at once.
  absl::Duration duration = absl::Seconds(10);  // How long one connection may last.
};

class HttpListener {
 public:
  // `make_page` and `make_stream` are called from the listener's thread. Borrows the clock.
  // Errors: Unavailable where no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(
      HttpSocket socket, PageMaker make_page, const Clock& clock, HttpLimits limits = {},
      HttpStreamMaker make_stream = MakePlainStream);

  // Closes all connections, after the page that is being made now.
  ~HttpListener();

  const std::string& address() const { return socket_.address; }

 private:
  // What a connection waits for: the request; room for the answer; the end of the peer's side. An
  // answer would be lost if the connection were closed while something of the peer is unread.
  enum class Stage { kRequest, kAnswer, kEnd };
  struct Connection {
    FileDescriptor socket;
    std::unique_ptr<HttpStream> stream;
    int64_t deadline_ns = 0;
    Stage stage = Stage::kRequest;
    std::string received;
    std::string answer;
    size_t sent = 0;
  };

  HttpListener(HttpSocket socket, FileDescriptor wake, PageMaker make_page, const Clock& clock,
               HttpLimits limits, HttpStreamMaker make_stream);
  void Run();
  void Accept();
  // These return whether the connection goes on.
  bool Advance(Connection& connection) const;
  bool Receive(Connection& connection) const;
  static bool Send(Connection& connection);
  static bool AwaitEnd(Connection& connection);

  // Constant after construction.
  const HttpSocket socket_;
  const FileDescriptor wake_;  // Readable once the listener is to end.
  const PageMaker make_page_;
  const Clock& clock_;
  const HttpLimits limits_;
  const HttpStreamMaker make_stream_;

  // Owned by the thread.
  std::list<Connection> connections_;
  int64_t accept_again_ns_ = 0;

  std::thread thread_;
};

}  // namespace gemmd
