// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/files.h"
#include "server/system/sockets.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {

namespace {

constexpr std::string_view kTlsPrefix = "tls:";
constexpr std::string_view kMutualTlsPrefix = "mtls:";

std::string_view WithoutPrefix(std::string_view address) {
  for (const std::string_view prefix : {kTlsPrefix, kMutualTlsPrefix}) {
    if (address.starts_with(prefix)) return address.substr(prefix.size());
  }
  return address;
}

// The family and the port have the same place in all of them.
struct Endpoint {
  union {
    sockaddr_in6 v6 = {};
    sockaddr_in v4;
    sockaddr any;
  };
  socklen_t bytes = 0;
};

std::optional<Endpoint> ParseEndpoint(std::string_view address) {
  address = WithoutPrefix(address);
  const size_t colon = address.rfind(':');
  if (colon == address.npos) return std::nullopt;
  std::string host(address.substr(0, colon));
  const std::optional<uint16_t> port = ParseDecimal<uint16_t>(address.substr(colon + 1));
  if (!port) return std::nullopt;
  const bool is_v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_v6) host = host.substr(1, host.size() - 2);
  Endpoint endpoint;
  endpoint.bytes = is_v6 ? sizeof(endpoint.v6) : sizeof(endpoint.v4);
  endpoint.v6.sin6_family = is_v6 ? AF_INET6 : AF_INET;
  endpoint.v6.sin6_port = htons(*port);
  void* const binary = is_v6 ? static_cast<void*>(&endpoint.v6.sin6_addr) : &endpoint.v4.sin_addr;
  if (inet_pton(endpoint.v6.sin6_family, host.c_str(), binary) != 1) return std::nullopt;
  return endpoint;
}

}  // namespace

HttpSecurity HttpSecurityOf(std::string_view address) {
  if (address.starts_with(kTlsPrefix)) return HttpSecurity::kTls;
  return address.starts_with(kMutualTlsPrefix) ? HttpSecurity::kMutualTls : HttpSecurity::kNone;
}

absl::Status CheckHttpAddress(std::string_view address) {
  if (ParseEndpoint(address)) return absl::OkStatus();
  return Invalid("metrics-listen", address,
                 "an IP address and a port: 127.0.0.1:8471, tls:0.0.0.0:8471, mtls:[::]:8471");
}

absl::StatusOr<HttpSocket> ListenForHttp(std::string_view address, PlainHttpReach reach) {
  RETURN_IF_ERROR(CheckHttpAddress(address));
  const std::optional<Endpoint> endpoint = ParseEndpoint(address);
  if (HttpSecurityOf(address) == HttpSecurity::kNone && reach == PlainHttpReach::kLoopback &&
      !IsLoopback(&endpoint->any)) {
    return absl::FailedPreconditionError(GotWant(
        "metrics-listen", address,
        "a loopback address, tls:ADDRESS or mtls:ADDRESS: anyone who can reach a plain address, or "
        "is on the path, can read the metrics; --insecure-allow-remote allows it"));
  }
  FileDescriptor socket = ListenOn(&endpoint->any, endpoint->bytes);
  if (!socket.is_open()) {
    return absl::UnavailableError(
        Concat("metrics-listen: cannot listen on ", address, ": ",
               std::error_code(errno, std::generic_category()).message()));
  }
  std::string bound = Concat(address.substr(0, address.rfind(':')), ":", PortOf(socket.get()));
  return HttpSocket{std::move(socket), std::move(bound)};
}

namespace {

bool MustWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

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
  // Nothing to do: the listener ends its side of the connection.
  Progress End() override { return Progress::kMoved; }
  short awaited() const override { return awaited_; }

 private:
  static Result ResultOf(ssize_t bytes) {
    if (bytes > 0) return {Progress::kMoved, static_cast<size_t>(bytes)};
    return {bytes < 0 && MustWait() ? Progress::kWaits : Progress::kOver};
  }

  const int socket_;
  short awaited_ = POLLIN;
};

}  // namespace

std::unique_ptr<HttpStream> MakePlainStream(int socket) {
  return std::make_unique<PlainStream>(socket);
}

namespace {

// Max bytes of certificates from a peer, including intermediate certificates.
constexpr long kMaxCertificateBytes = 65536;

using openssl::Bio;
using openssl::Certificate;
using openssl::Connection;
using openssl::Context;
using openssl::Key;
using openssl::Reader;
using ClientCheck = std::function<absl::Status(std::string_view certificate)>;

Certificate NextOf(const Bio& reader) {
  return Certificate(PEM_read_bio_X509_AUX(reader.get(), nullptr, nullptr, nullptr));
}

// With OpenSSL's reason: the certificates of a file are not secret, and the reason does not reveal
// keys.
absl::Status Refused(std::string_view option) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(
      Concat(option, ": rejected by OpenSSL: ", reason == nullptr ? "no reason" : reason));
}

absl::Status Show(SSL_CTX* context, const std::string& key_and_chain) {
  const Key key(PEM_read_bio_PrivateKey(Reader(key_and_chain).get(), nullptr, nullptr, nullptr));
  const Bio reader = Reader(key_and_chain);
  const Certificate own = NextOf(reader);
  if (key == nullptr || own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return Refused("tls-cert");
  }
  while (const Certificate next = NextOf(reader)) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) return Refused("tls-cert");
  }
  ERR_clear_error();
  return absl::OkStatus();
}

std::string PemOf(X509* certificate) {
  const Bio writer(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(writer.get(), certificate);
  char* text = nullptr;
  const long length = BIO_get_mem_data(writer.get(), &text);
  return {text, static_cast<size_t>(length)};
}

// Called by OpenSSL for each certificate between a root and the peer's own.
int MayStay(int is_right, X509_STORE_CTX* store) {
  if (is_right != 1 || X509_STORE_CTX_get_error_depth(store) != 0) return is_right;
  const auto* const connection = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto* const check =
      static_cast<const ClientCheck*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(connection)));
  if ((*check)(PemOf(X509_STORE_CTX_get_current_cert(store))).ok()) return 1;
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REVOKED);
  return 0;
}

absl::Status AskClients(SSL_CTX* context, const std::string& client_ca, ClientCheck& check) {
  const Bio reader = Reader(client_ca);
  while (const Certificate next = NextOf(reader)) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), next.get()) != 1 ||
        SSL_CTX_add_client_CA(context, next.get()) != 1) {
      return Refused("client-ca");
    }
  }
  ERR_clear_error();
  SSL_CTX_set_app_data(context, &check);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, MayStay);
  return absl::OkStatus();
}

Context NewContext() {
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_num_tickets(context.get(), 0) != 1) {
    return nullptr;
  }
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_max_cert_list(context.get(), kMaxCertificateBytes);
  return context;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Make(const Options& options) {
  std::shared_ptr<TlsContext> made(new TlsContext);
  made->context_ = NewContext();
  made->check_client_ = options.check_client;
  if (made->context_ == nullptr) return Refused("tls-cert");
  RETURN_IF_ERROR(Show(made->context_.get(), options.key_and_chain));
  if (!options.client_ca.empty()) {
    RETURN_IF_ERROR(AskClients(made->context_.get(), options.client_ca, made->check_client_));
  }
  return made;
}

namespace {

class TlsStream final : public HttpStream {
 public:
  TlsStream(std::shared_ptr<const TlsContext> context, Connection connection)
      : context_(std::move(context)), connection_(std::move(connection)) {}

  // One call reads at most one record, of 16 KB, and OpenSSL limits the number of records without
  // data before it.
  Result Receive(absl::Span<char> bytes) override {
    size_t moved = 0;
    ERR_clear_error();
    const int outcome = SSL_read_ex(connection_.get(), bytes.data(), bytes.size(), &moved);
    return ResultOf(outcome, moved);
  }
  Result Send(std::string_view bytes) override {
    size_t moved = 0;
    ERR_clear_error();
    const int outcome = SSL_write_ex(connection_.get(), bytes.data(), bytes.size(), &moved);
    return ResultOf(outcome, moved);
  }
  Progress End() override {
    ERR_clear_error();
    const int outcome = SSL_shutdown(connection_.get());
    // Does not wait for the peer's close_notify.
    if (outcome >= 0) return Progress::kMoved;
    return ResultOf(outcome, 0).progress;
  }
  short awaited() const override { return awaited_; }

 private:
  Result ResultOf(int outcome, size_t moved) {
    if (outcome > 0) return {Progress::kMoved, moved};
    switch (SSL_get_error(connection_.get(), outcome)) {
      case SSL_ERROR_WANT_READ: awaited_ = POLLIN; return {Progress::kWaits};
      case SSL_ERROR_WANT_WRITE: awaited_ = POLLOUT; return {Progress::kWaits};
      case SSL_ERROR_SSL: ERR_clear_error(); return {Progress::kRefused};
      default: ERR_clear_error(); return {Progress::kOver};
    }
  }

  const std::shared_ptr<const TlsContext>
      context_;  // Keeps the data for the check of clients alive.
  const Connection connection_;
  short awaited_ = POLLIN;
};

}  // namespace

std::unique_ptr<HttpStream> MakeTlsStream(std::shared_ptr<const TlsContext> context, int socket) {
  Connection connection(SSL_new(context->context_.get()));
  if (connection == nullptr || SSL_set_fd(connection.get(), socket) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  SSL_set_accept_state(connection.get());
  return std::make_unique<TlsStream>(std::move(context), std::move(connection));
}

namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kPlainText = "text/plain; charset=utf-8";
constexpr std::string_view kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";

struct RequestLine {
  std::string_view method;
  std::string_view path;  // Without a query.
};

// Also returns "/metrics" for "http://host:port/metrics", which a server must accept (RFC 9112,
// 3.2.2).
std::string_view WithoutAuthority(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (!target.starts_with(kScheme)) return target;
  const size_t path = target.find('/', kScheme.size());
  return path == target.npos ? "/" : target.substr(path);
}

// Parses a line such as "GET /metrics?x=y HTTP/1.1"; returns nullopt for anything else.
std::optional<RequestLine> ParseRequestLine(std::string_view head) {
  const std::string_view line = head.substr(0, head.find(kLineEnd));
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == line.npos || target_end <= method_end) return std::nullopt;
  const std::string_view target =
      WithoutAuthority(line.substr(method_end + 1, target_end - method_end - 1));
  const std::string_view version = line.substr(target_end + 1);
  if (!target.starts_with('/') || target.find(' ') != target.npos ||
      (version != "HTTP/1.1" && version != "HTTP/1.0")) {
    return std::nullopt;
  }
  return RequestLine{line.substr(0, method_end), target.substr(0, target.find('?'))};
}

std::string Whole(std::string_view status, std::string_view type, std::string_view more,
                  std::string_view body, bool is_head_only) {
  return Concat("HTTP/1.1 ", status, kLineEnd, "Content-Type: ", type, kLineEnd,
                "Content-Length: ", body.size(), kLineEnd, "Connection: close", kLineEnd, more,
                kLineEnd, is_head_only ? "" : body);
}

std::string Refuse(std::string_view status, std::string_view more = "", bool is_head_only = false) {
  return Whole(status, kPlainText, more, Concat(status, "\n"), is_head_only);
}

}  // namespace

bool IsWholeHead(std::string_view received) {
  return received.size() > kMaxHeadBytes || received.find(kHeadEnd) != received.npos;
}

std::string AnswerTo(std::string_view head, const PageMaker& make_page) {
  if (head.size() > kMaxHeadBytes) return Refuse("431 Request Header Fields Too Large");
  const std::optional<RequestLine> line = ParseRequestLine(head);
  if (!line) return Refuse("400 Bad Request");
  const bool is_head_only = line->method == "HEAD";
  if (!is_head_only && line->method != "GET") {
    return Refuse("405 Method Not Allowed", Concat("Allow: GET, HEAD", kLineEnd));
  }
  const std::optional<Page> page = make_page(line->path);
  if (!page) return Refuse("404 Not Found", "", is_head_only);
  return Whole(page->is_available ? "200 OK" : "503 Service Unavailable", kPrometheusText, "",
               page->body, is_head_only);
}

namespace {

// The pause before the next try if no file descriptor is left.
constexpr int64_t kAcceptPauseNs = 100'000'000;

using Progress = HttpStream::Progress;

// Discards what the peer still sends. Returns whether more may come.
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
  if (!wake.is_open()) return absl::UnavailableError("metrics-listen: no file descriptor is left");
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
  // OpenSSL writes without MSG_NOSIGNAL; the error shows that the peer is gone.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::vector<pollfd> files;
  while (true) {
    const int64_t now_ns = clock_.NowNs();
    const bool may_accept = now_ns >= accept_again_ns_;
    int64_t until_ns = now_ns < accept_again_ns_ ? accept_again_ns_ : kNoDeadlineNs;
    // poll ignores a negative file descriptor.
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
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  FileDescriptor accepted(accept4(socket_.socket.get(), reinterpret_cast<sockaddr*>(&address),
                                  &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.is_open()) {
    std::unique_ptr<HttpStream> stream = make_stream_(accepted.get());
    if (stream == nullptr) return;
    Connection& connection = connections_.emplace_back();
    connection.peer = PeerOf(accepted.get(), address);
    connection.socket = std::move(accepted);
    connection.stream = std::move(stream);
    connection.deadline_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(limits_.duration);
    if (connections_.size() > limits_.connections) CloseOne();
  } else if (!MustWait() && errno != ECONNABORTED) {
    accept_again_ns_ = clock_.NowNs() + kAcceptPauseNs;
  }
}

// Closes the oldest connection of the host that has most, whether or not it is being answered: a
// host that asks and does not read, or connects again and again, only closes its own connections.
void HttpListener::CloseOne() {
  std::map<std::string_view, int> counts;
  for (const Connection& connection : connections_) ++counts[connection.peer];
  connections_.erase(std::ranges::max_element(
      connections_, {}, [&](const Connection& connection) { return counts[connection.peer]; }));
}

bool HttpListener::Advance(Connection& connection) const {
  if (connection.stage == Stage::kEnd) return Discard(connection.socket.get());
  if (connection.stage == Stage::kRequest && !Receive(connection)) return false;
  return connection.stage != Stage::kAnswer || Send(connection);
}

// Reads everything that has arrived of the head, because data of a TLS record already read does not
// wake poll. The max length of a head limits it.
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
