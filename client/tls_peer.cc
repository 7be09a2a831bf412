// SPDX-License-Identifier: Apache-2.0
#include "client/tls_peer.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/credentials.h"
#include "client/openssl_objects.h"

namespace gemmd {
namespace {

using tls::Bio;
using tls::Certificate;
using tls::Context;

// A server that hangs up in the middle of a handshake must not end this process: OpenSSL writes
// without the flag that gRPC has for that. Holds SIGPIPE back from this thread.
class SigpipeHeldBack {
 public:
  SigpipeHeldBack() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeHeldBack() {
    const timespec now = {};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeHeldBack(const SigpipeHeldBack&) = delete;
  SigpipeHeldBack& operator=(const SigpipeHeldBack&) = delete;

 private:
  sigset_t pipe_ = {};
  sigset_t before_ = {};
};

// What OpenSSL says was wrong. Leaves nothing that gRPC would take for its own.
std::string LastError() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  const std::string text = reason == nullptr ? "no answer" : reason;
  ERR_clear_error();
  return text;
}

absl::Status TrustAuthorities(SSL_CTX& context, const std::string& ca_file) {
  if (ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(&context);
    return absl::OkStatus();
  }
  const auto authorities = ReadAuthorities(ca_file);
  if (!authorities.ok()) return authorities.status();
  const Bio reader = tls::Reader(*authorities);
  while (const Certificate next{PEM_read_bio_X509_AUX(reader.get(), nullptr, nullptr, nullptr)}) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(&context), next.get());
  }
  ERR_clear_error();
  return absl::OkStatus();
}

absl::StatusOr<Context> ContextFor(const TlsOptions& tls) {
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::ResourceExhaustedError(LastError());
  // The certificate is judged after the handshake, so that a bad one can be described.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const absl::Status trusted = TrustAuthorities(*context, tls.ca_file);
  if (!trusted.ok()) return trusted;
  if (tls.certificate_file.empty()) return context;
  if (SSL_CTX_use_certificate_chain_file(context.get(), tls.certificate_file.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-cert, --tls-key: got ", tls.certificate_file, " and ", tls.key_file,
                     ", ", LastError(), ", want a certificate and its key in PEM"));
  }
  return context;
}

// The name that the certificate must bear, and what the server may speak.
void Prepare(SSL& ssl, const std::string& name) {
  constexpr unsigned char kProtocols[] = {2, 'h', '2'};
  SSL_set_alpn_protos(&ssl, kProtocols, sizeof(kProtocols));
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(&ssl), name.c_str()) == 1) return;
  SSL_set1_host(&ssl, name.c_str());
  SSL_set_tlsext_host_name(&ssl, name.c_str());
}

std::string HostOf(const std::string& host_and_port) {
  std::string host = host_and_port.substr(0, host_and_port.rfind(':'));
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

absl::Time EndOf(const X509& certificate) {
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return absl::InfinitePast();
  return absl::FromTM(end, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<TlsPeer> LookAtTlsPeer(const std::string& host_and_port, const TlsOptions& tls,
                                      absl::Time deadline) {
  const absl::StatusOr<Context> context = ContextFor(tls);
  if (!context.ok()) return context.status();
  const SigpipeHeldBack held_back;
  const Bio connection(BIO_new_ssl_connect(context->get()));
  SSL* ssl = nullptr;
  if (connection == nullptr || BIO_get_ssl(connection.get(), &ssl) != 1 || ssl == nullptr) {
    return absl::ResourceExhaustedError(LastError());
  }
  Prepare(*ssl, tls.server_name.empty() ? HostOf(host_and_port) : tls.server_name);
  BIO_set_conn_hostname(connection.get(), host_and_port.c_str());
  BIO_set_nbio(connection.get(), 1);
  // OpenSSL counts whole seconds, and takes 0 for no limit.
  const int64_t seconds = std::max<int64_t>(1, absl::ToInt64Seconds(deadline - absl::Now()));
  constexpr int kPauseMs = 10;
  const int limit = static_cast<int>(std::min<int64_t>(seconds, 3600));
  if (BIO_do_connect_retry(connection.get(), limit, kPauseMs) != 1) {
    const std::string reason = LastError();
    return absl::UnavailableError(absl::StrCat("no handshake of TLS: ", reason));
  }
  const Certificate certificate(SSL_get1_peer_certificate(ssl));
  if (certificate == nullptr) return absl::UnavailableError("the server shows no certificate");
  const long verdict = SSL_get_verify_result(ssl);  // NOLINT(google-runtime-int): OpenSSL's type.
  return TlsPeer{.version = SSL_get_version(ssl),
                 .not_after = EndOf(*certificate),
                 .fault = verdict == X509_V_OK ? "" : X509_verify_cert_error_string(verdict)};
}

}  // namespace gemmd
