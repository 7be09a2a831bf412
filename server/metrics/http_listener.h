// SPDX-License-Identifier: Apache-2.0
//
// A small HTTP server on one thread of its own. It takes a few connections at once, each with a
// time limit, so that a silent or slow peer delays nobody. It neither encrypts nor authenticates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/metrics/http_answer.h"
#include "server/system/clock.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

// Errors: InvalidArgument for anything but an IP address and a port: "127.0.0.1:8471", "[::1]:0".
absl::Status CheckHttpAddress(std::string_view address);

// A socket that peers may already connect to; the listener that gets it answers them.
struct HttpSocket {
  FileDescriptor socket;
  std::string address;  // The address in use, with the port that was chosen.
};

// Port 0 takes a free port.
// Errors: InvalidArgument as CheckHttpAddress; Unavailable where the address cannot be listened on,
// with the system's reason.
absl::StatusOr<HttpSocket> ListenForHttp(std::string_view address);

struct HttpLimits {
  size_t connections = 16;                      // How many there are at once.
  absl::Duration duration = absl::Seconds(10);  // How long one connection may last.
};

class HttpListener {
 public:
  // `make_page` is called from the listener's thread. Borrows the clock.
  // Errors: Unavailable where no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(HttpSocket socket, PageMaker make_page,
                                                             const Clock& clock,
                                                             HttpLimits limits = {});

  // Closes all connections, after the page that is being made now.
  ~HttpListener();

  const std::string& address() const { return socket_.address; }

 private:
  // What a connection waits for: the request; room for the answer; the end of the peer's side. An
  // answer would be lost if the connection were closed while something of the peer is unread.
  enum class Stage { kRequest, kAnswer, kEnd };
  struct Connection {
    FileDescriptor socket;
    int64_t deadline_ns = 0;
    Stage stage = Stage::kRequest;
    std::string received;
    std::string answer;
    size_t sent = 0;
  };

  HttpListener(HttpSocket socket, FileDescriptor wake, PageMaker make_page, const Clock& clock,
               HttpLimits limits);
  void Run();
  void Accept();
  // These return whether the connection goes on.
  bool Advance(Connection& connection) const;
  bool Receive(Connection& connection) const;
  static bool Send(Connection& connection);

  // Constant after construction.
  const HttpSocket socket_;
  const FileDescriptor wake_;  // Readable once the listener is to end.
  const PageMaker make_page_;
  const Clock& clock_;
  const HttpLimits limits_;

  // Owned by the thread.
  std::list<Connection> connections_;
  int64_t accept_again_ns_ = 0;

  std::thread thread_;
};

}  // namespace gemmd
