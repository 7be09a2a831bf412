// SPDX-License-Identifier: Apache-2.0
//
// The part of HTTP/1.1 that a scraper needs: GET and HEAD of a path, one request per connection,
// plain or over TLS. A small server answers on its own thread. It handles a few connections at
// once, each with a time limit, and shares them among hosts, so that a silent or slow peer does not
// delay others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/system/clock.h"
#include "server/system/files.h"

struct ssl_ctx_st;

namespace gemmd {

// The security of the connections to an address.
enum class HttpSecurity {
  kNone,
  kTls,        // The daemon presents a certificate.
  kMutualTls,  // The peer also presents one.
};

// The security of an address. The part after its prefix, tls: or mtls:, may be invalid.
HttpSecurity HttpSecurityOf(std::string_view address);

// Errors: InvalidArgument for anything but an IP address and a port, after tls:, mtls: or nothing:
// "127.0.0.1:8471", "tls:[::1]:0".
absl::Status CheckHttpAddress(std::string_view address);

// A socket that peers may already connect to; the listener that gets it answers them.
struct HttpSocket {
  FileDescriptor socket;
  std::string address;  // The address in use, with its prefix and the chosen port.
};

// The allowed sources of connections without TLS.
enum class PlainHttpReach { kLoopback, kAnywhere };

// Port 0 means a free port. Errors: InvalidArgument as CheckHttpAddress; FailedPrecondition for an
// address without TLS that `reach` does not allow; Unavailable if it cannot listen on the address,
// with the system's reason.
absl::StatusOr<HttpSocket> ListenForHttp(std::string_view address,
                                         PlainHttpReach reach = PlainHttpReach::kLoopback);

// The bytes of one connection of the HTTP listener, plain or over TLS. Nothing here waits.
class HttpStream {
 public:
  enum class Progress {
    kMoved,    // Some bytes, or the end, were transferred.
    kWaits,    // For the socket, as awaited() says.
    kRefused,  // The peer breaks the protocol. It was notified if possible.
    kOver,     // The peer is gone.
  };
  struct Result {
    Progress progress;
    size_t bytes = 0;  // With kMoved.
  };

  virtual ~HttpStream() = default;

  virtual Result Receive(absl::Span<char> bytes) = 0;
  virtual Result Send(std::string_view bytes) = 0;
  // Tells the peer that nothing follows; kMoved: done.
  virtual Progress End() = 0;

  // The events of poll after which the next try may make progress.
  virtual short awaited() const = 0;
};

// Makes the stream of a socket, which is borrowed. May return null: the connection is then closed.
using HttpStreamMaker = std::function<std::unique_ptr<HttpStream>(int socket)>;

std::unique_ptr<HttpStream> MakePlainStream(int socket);

// The daemon's certificate and the checks of peers, in TLS 1.3. A handshake happens as the first
// bytes are received, and leaves no state after its connection: no tickets, no sessions, no early
// data. Threads: any.
class TlsContext {
 public:
  struct Options {
    std::string key_and_chain;  // PEM: the key, the daemon's own certificate, and its intermediate
                                // certificates.
    // PEM; if not empty, peers must present a certificate signed by one of these.
    std::string client_ca;
    // Whether to accept a peer's own certificate, in PEM, after all other checks.
    std::function<absl::Status(std::string_view certificate)> check_client = [](std::string_view) {
      return absl::OkStatus();
    };
  };

  // Errors: InvalidArgument for anything that OpenSSL rejects, such as a key that is too short; the
  // message names --tls-cert or --client-ca but reveals nothing about a key.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Make(const Options& options);

 private:
  friend std::unique_ptr<HttpStream> MakeTlsStream(std::shared_ptr<const TlsContext> context,
                                                   int socket);
  TlsContext() = default;

  std::shared_ptr<ssl_ctx_st> context_;
  // OpenSSL's context points to it.
  std::function<absl::Status(std::string_view certificate)> check_client_;
};

// Null if no memory is left. The thread that uses it must have blocked or ignored SIGPIPE.
std::unique_ptr<HttpStream> MakeTlsStream(std::shared_ptr<const TlsContext> context, int socket);

struct Page {
  std::string body;
  bool is_available = true;  // If false, the answer is 503 Service Unavailable.
};

// Returns the page at a path, or nullopt if there is none.
using PageMaker = std::function<std::optional<Page>(std::string_view path)>;

// A request with a longer head is refused.
inline constexpr size_t kMaxHeadBytes = 8192;

// Whether `received` is enough for AnswerTo: a whole head, or a head that is too long.
bool IsWholeHead(std::string_view received);

// The whole answer, head and body, to a request's head. The page is made only for a valid request.
std::string AnswerTo(std::string_view head, const PageMaker& make_page);

struct HttpLimits {
  size_t connections = 16;                      // Max connections at once.
  absl::Duration duration = absl::Seconds(10);  // Max duration of a connection.
};

// Answers peers on its own thread. The time limit of a connection includes its TLS handshake.
class HttpListener {
 public:
  // `make_page` and `make_stream` are called from the listener's thread. Borrows the clock.
  // Errors: Unavailable if no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(
      HttpSocket socket, PageMaker make_page, const Clock& clock, HttpLimits limits = {},
      HttpStreamMaker make_stream = MakePlainStream);

  // Closes all connections, after the page in progress.
  ~HttpListener();

  const std::string& address() const { return socket_.address; }

 private:
  // What a connection waits for: the request; room for the answer; the end of the peer's side. An
  // answer would be lost if the connection were closed while data of the peer is unread.
  enum class Stage { kRequest, kAnswer, kEnd };
  struct Connection {
    FileDescriptor socket;
    std::string peer;  // As PeerOf names it.
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
  void CloseOne();
  // These return whether the connection continues.
  bool Advance(Connection& connection) const;
  bool Receive(Connection& connection) const;
  static bool Send(Connection& connection);
  static bool AwaitEnd(Connection& connection);

  // Constant after construction.
  const HttpSocket socket_;
  const FileDescriptor wake_;  // Readable once the listener must end.
  const PageMaker make_page_;
  const Clock& clock_;
  const HttpLimits limits_;
  const HttpStreamMaker make_stream_;

  // Owned by the thread.
  std::list<Connection> connections_;  // The oldest first.
  int64_t accept_again_ns_ = 0;

  std::thread thread_;
};

}  // namespace gemmd
