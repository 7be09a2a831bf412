// SPDX-License-Identifier: Apache-2.0
//
// A small HTTP server on one thread of its own: a few connections at once, each with a time limit,
// so that a peer that is silent or slow holds up nobody. No encryption, no authentication.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "server/clock.h"
#include "server/metrics/http_answer.h"
#include "server/worker/file_descriptor.h"

namespace gemmd {

// Errors: InvalidArgument unless it is an IP address and a port: "127.0.0.1:8471", "[::1]:0".
absl::Status CheckHttpAddress(std::string_view address);

class HttpListener {
 public:
  // `make_page` is called from the listener's thread. Port 0 takes a free one.
  // Errors: InvalidArgument as above; Unavailable where the address cannot be listened on, with the
  // system's reason.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(std::string_view address,
                                                             PageMaker make_page);

  // Closes what is open, after the page that is just being made.
  ~HttpListener();

  // As listened on, with the port that was chosen.
  const std::string& address() const { return address_; }

 private:
  struct Connection {
    FileDescriptor socket;
    int64_t deadline_ns = 0;
    std::string received;
    std::string answer;  // Not empty: being sent.
    size_t sent = 0;
  };

  HttpListener(FileDescriptor socket, FileDescriptor wake, std::string address,
               PageMaker make_page);
  void Run();
  void Accept();
  // These return whether the connection goes on.
  bool Advance(Connection& connection) const;
  bool Receive(Connection& connection) const;
  static bool Send(Connection& connection);

  // Constant.
  const SteadyClock clock_;
  const FileDescriptor socket_;
  const FileDescriptor wake_;  // Readable: the end.
  const std::string address_;
  const PageMaker make_page_;

  // Owned by the thread.
  std::list<Connection> connections_;
  int64_t accept_again_ns_ = 0;

  std::thread thread_;
};

}  // namespace gemmd
