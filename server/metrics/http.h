// SPDX-License-Identifier: Apache-2.0
//
// As much of HTTP/1.1 as a scraper needs: GET and HEAD of a path, one request for each connection,
// plain or within TLS. A small server on one thread of its own answers; it takes a few connections
// at once, each with a time limit, so that a silent or slow peer delays nobody.
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

namespace gemmd {

// What protects the connections to an address.
enum class HttpSecurity {
  kNone,
  kTls,        // The daemon shows a certificate.
  kMutualTls,  // The peer shows one too.
};

// That of an address, which may be wrong in all that follows its prefix, tls: or mtls:.
HttpSecurity HttpSecurityOf(std::string_view address);

// Errors: InvalidArgument for anything but an IP address and a port, after tls:, mtls: or nothing:
// "127.0.0.1:8471", "tls:[::1]:0".
absl::Status CheckHttpAddress(std::string_view address);

// A socket that peers may already connect to; the listener that gets it answers them.
struct HttpSocket {
  FileDescriptor socket;
  std::string address;  // The address in use, with its prefix and the port that was chosen.
};

// From where connections without TLS may come.
enum class PlainHttpReach { kLoopback, kAnywhere };

// Port 0 takes a free port.
// Errors: InvalidArgument as CheckHttpAddress; FailedPrecondition for an address without TLS that
// `reach` does not allow; Unavailable where the address cannot be listened on, with the system's
// reason.
absl::StatusOr<HttpSocket> ListenForHttp(std::string_view address,
                                         PlainHttpReach reach = PlainHttpReach::kLoopback);

// The bytes of one connection of the HTTP listener, as they are or within TLS. Nothing here waits.
class HttpStream {
 public:
  enum class Progress {
    kMoved,    // Some bytes, or what was to be said.
    kWaits,    // For the socket, as awaited() says.
    kRefused,  // The peer breaks the rules and was told so, where there is a way to.
    kOver,     // The peer has gone.
  };
  struct Result {
    Progress progress;
    size_t bytes = 0;  // With kMoved.
  };

  HttpStream() = default;
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;
  virtual ~HttpStream() = default;

  virtual Result Receive(absl::Span<char> bytes) = 0;
  virtual Result Send(std::string_view bytes) = 0;
  // Tells the peer that nothing follows, for which kMoved stands.
  virtual Progress End() = 0;

  // The events of poll after which the next try may get further.
  virtual short awaited() const = 0;
};

// Makes the stream of a socket, which is borrowed. May give null: the connection is then closed.
using HttpStreamMaker = std::function<std::unique_ptr<HttpStream>(int socket)>;

std::unique_ptr<HttpStream> MakePlainStream(int socket);

// What the daemon shows to peers and asks of them, in TLS 1.3. A handshake belongs to the first
// bytes that are received, and has no state that outlives its connection: no tickets, no sessions,
// no early data. Threads: any.
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

struct Page {
  std::string body;
  bool is_available = true;  // Otherwise the answer is 503 Service Unavailable.
};

// Gives the page at a path, or nothing where there is none.
using PageMaker = std::function<std::optional<Page>(std::string_view path)>;

// A longer head of a request is refused.
inline constexpr size_t kMaxHeadBytes = 8192;

// Whether `received` has all that AnswerTo needs: a whole head, or a head that is too long.
bool IsWholeHead(std::string_view received);

// The whole answer, head and body, to a request's head. The page is made only for a good request.
std::string AnswerTo(std::string_view head, const PageMaker& make_page);

struct HttpLimits {
  size_t connections = 16;                      // How many there are at once.
  absl::Duration duration = absl::Seconds(10);  // How long one connection may last.
};

// Answers peers on a thread of its own. The time limit of a connection includes its handshake of
// TLS.
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
