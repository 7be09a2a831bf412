// SPDX-License-Identifier: Apache-2.0
//
// TLS 1.3 for connections of the HTTP listener. A handshake belongs to the first bytes that are
// received, and has no state that outlives its connection: no tickets, no sessions, no early data.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/metrics/http_stream.h"

namespace gemmd {

// What the daemon shows to peers and asks of them. Threads: any.
class TlsContext {
 public:
  struct Options {
    std::string key_and_chain;  // PEM: the key, the daemon's own certificate, those above it.
    // PEM; where it is not empty, peers must show a certificate that one of these has signed.
    std::string client_ca;
    // Whether a peer's own certificate, in PEM, may stay, after all else was found right.
    std::function<absl::Status(std::string_view certificate)> check_client = [](std::string_view) {
      return absl::OkStatus();
    };
  };

  // Errors: InvalidArgument, naming --tls-cert or --client-ca but nothing of a key, for what
  // OpenSSL does not take, such as a key that is too short.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Make(const Options& options);

  ~TlsContext();

 private:
  struct State;
  friend std::unique_ptr<HttpStream> MakeTlsStream(std::shared_ptr<const TlsContext> context,
                                                   int socket);

  explicit TlsContext(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

// Null where no memory is left. The thread that uses it must have blocked or ignored SIGPIPE.
std::unique_ptr<HttpStream> MakeTlsStream(std::shared_ptr<const TlsContext> context, int socket);

}  // namespace gemmd
