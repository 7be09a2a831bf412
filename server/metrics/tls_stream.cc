// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>

#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {
namespace {

// How much a peer may send of certificates, those between its own and a root included.
constexpr long kMostCertificateBytes = 65536;

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

// OpenSSL's own reason: the certificates of a file are no secret, and the reason says nothing of
// keys.
absl::Status Refused(std::string_view option) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(
      Concat(option, ": OpenSSL does not take it: ", reason == nullptr ? "no reason" : reason));
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
  SSL_CTX_set_max_cert_list(context.get(), kMostCertificateBytes);
  return context;
}

}  // namespace

struct TlsContext::State {
  Context context;
  ClientCheck check_client;  // OpenSSL's context points to it.
};

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Make(const Options& options) {
  auto state = std::make_unique<State>();
  state->context = NewContext();
  state->check_client = options.check_client;
  if (state->context == nullptr) return Refused("tls-cert");
  RETURN_IF_ERROR(Show(state->context.get(), options.key_and_chain));
  if (!options.client_ca.empty()) {
    RETURN_IF_ERROR(AskClients(state->context.get(), options.client_ca, state->check_client));
  }
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(state)));
}

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

namespace {

class TlsStream final : public HttpStream {
 public:
  TlsStream(std::shared_ptr<const TlsContext> context, Connection connection)
      : context_(std::move(context)), connection_(std::move(connection)) {}

  // One call reads at most one record, of 16 KB, for the listener, and OpenSSL bounds how many
  // records without bytes for it may come first.
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
    // The peer's own word is not waited for.
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

  const std::shared_ptr<const TlsContext> context_;  // Holds what the check of clients needs.
  const Connection connection_;
  short awaited_ = POLLIN;
};

}  // namespace

std::unique_ptr<HttpStream> MakeTlsStream(std::shared_ptr<const TlsContext> context, int socket) {
  Connection connection(SSL_new(context->state_->context.get()));
  if (connection == nullptr || SSL_set_fd(connection.get(), socket) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  SSL_set_accept_state(connection.get());
  return std::make_unique<TlsStream>(std::move(context), std::move(connection));
}

}  // namespace gemmd
