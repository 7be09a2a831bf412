// SPDX-License-Identifier: Apache-2.0
#include "server/wire/served_certificates.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/log.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {
namespace {

// How often gRPC looks; it knows no shorter time.
constexpr int kSecondsBetweenLooks = 1;

absl::Status NoDescriptor() {
  return absl::UnavailableError("tls-cert: no file descriptor is left");
}

FileDescriptor EmptyFile() { return FileDescriptor(memfd_create("gemmd-tls", MFD_CLOEXEC)); }

std::string PathOf(const FileDescriptor& file) { return Concat("/proc/self/fd/", file.get()); }

// Makes the descriptor stand for a new file, at once. `version` becomes its time in seconds.
absl::Status Replace(const FileDescriptor& file, std::string_view bytes, int64_t version) {
  const FileDescriptor made = EmptyFile();
  if (!made.is_open()) return NoDescriptor();
  const std::array<timespec, 2> times = {
      {{.tv_sec = version, .tv_nsec = 0}, {.tv_sec = version, .tv_nsec = 0}}};
  const bool is_written =
      write(made.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
      futimens(made.get(), times.data()) == 0 && dup3(made.get(), file.get(), O_CLOEXEC) >= 0;
  return is_written ? absl::OkStatus() : NoDescriptor();
}

// gRPC's later versions know a least version of TLS; for 1.51 see main.
template <typename Credentials>
void TakeNothingBelowTls13(Credentials& credentials) {
  if constexpr (requires { credentials.set_min_tls_version(TLS1_3); }) {
    credentials.set_min_tls_version(TLS1_3);
  }
}

// Whether a certificate, in PEM, is valid now. OpenSSL looks at its dates in a full handshake
// alone, and a peer that goes on with a session of before would otherwise be served for as long as
// he likes.
absl::Status CheckDates(absl::string_view certificate) {
  const openssl::Certificate peer(PEM_read_bio_X509(
      openssl::Reader({certificate.data(), certificate.size()}).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (peer == nullptr) return absl::UnauthenticatedError("no certificate");
  // Both give 0 for a date that is none.
  const bool has_begun = X509_cmp_current_time(X509_get0_notBefore(peer.get())) < 0;
  const bool has_ended = X509_cmp_current_time(X509_get0_notAfter(peer.get())) <= 0;
  if (has_begun && !has_ended) return absl::OkStatus();
  return absl::UnauthenticatedError("the certificate is not valid now");
}

// Looks at each client that has shown a certificate of a known authority, also where it goes on
// with a session of before. Borrows the certificates.
class ClientCheck : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit ClientCheck(const ServedCertificates& certificates) : certificates_(certificates) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    const grpc::string_ref peer = request->peer_cert();
    const absl::Status checked = certificates_.CheckClient({peer.data(), peer.size()});
    *status = checked.ok()
                  ? grpc::Status::OK
                  : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(checked.message()));
    return true;  // It is done.
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const ServedCertificates& certificates_;
};

std::string Expiry(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

// What nobody will take is no reason not to start, since there may be other ways in.
bool IsValidNow(const Certificates& certificates) {
  const absl::Time now = absl::Now();
  return certificates.not_before <= now && now <= certificates.not_after;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedCertificates>> ServedCertificates::Load(
    CertificateFiles files) {
  FileDescriptor key_and_chain = EmptyFile();
  FileDescriptor client_ca = EmptyFile();
  if (!key_and_chain.is_open() || !client_ca.is_open()) return NoDescriptor();
  std::unique_ptr<ServedCertificates> made(
      new ServedCertificates(std::move(files), std::move(key_and_chain), std::move(client_ca)));
  RETURN_IF_ERROR(made->Change());
  return made;
}

ServedCertificates::ServedCertificates(CertificateFiles files, FileDescriptor key_and_chain,
                                       FileDescriptor client_ca)
    : files_(std::move(files)),
      key_and_chain_(std::move(key_and_chain)),
      client_ca_(std::move(client_ca)) {}

std::shared_ptr<grpc::ServerCredentials> ServedCertificates::CredentialsFor(Peer peer) const {
  const std::string own = PathOf(key_and_chain_);
  const std::string authorities = peer == Peer::kCertified ? PathOf(client_ca_) : "";
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(own, own, authorities,
                                                                           kSecondsBetweenLooks));
  options.watch_identity_key_cert_pairs();
  if (peer == Peer::kCertified) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.set_certificate_verifier(
        grpc::experimental::ExternalCertificateVerifier::Create<ClientCheck>(*this));
  }
  TakeNothingBelowTls13(options);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<const TlsContext> ServedCertificates::ContextFor(Peer peer) const {
  MutexLock lock(&mutex_);
  return peer == Peer::kCertified ? for_certified_ : for_anybody_;
}

absl::Status ServedCertificates::Change() {
  absl::StatusOr<CertificateBytes> bytes = ReadCertificateFiles(files_);
  MutexLock lock(&mutex_);
  if (seen_ && *seen_ == bytes) {
    if (!untimely_ || !IsValidNow(*untimely_)) return absl::OkStatus();
    return Take(*std::exchange(untimely_, std::nullopt));
  }
  seen_ = bytes;
  untimely_.reset();
  if (!bytes.ok()) return bytes.status();
  ASSIGN_OR_RETURN(const Certificates certificates, CheckCertificates(*bytes, files_));
  const bool is_first = state_.loads == 0;
  if (!IsValidNow(certificates)) {
    if (!is_first) {
      untimely_ = certificates;
      return absl::InvalidArgumentError(
          GotWant("tls-cert", files_.certificate,
                  Concat("one that is valid now (it is from ", Expiry(certificates.not_before),
                         " to ", Expiry(certificates.not_after), ")")));
    }
    spdlog::warn("event=certificate_not_valid file={} from={} until={}",
                 LogValue(files_.certificate), Expiry(certificates.not_before),
                 Expiry(certificates.not_after));
  }
  return Take(certificates);
}

absl::Status ServedCertificates::Take(const Certificates& certificates) {
  RETURN_IF_ERROR(Show(certificates));
  spdlog::info("event=certificate_loaded file={} until={}", LogValue(files_.certificate),
               Expiry(certificates.not_after));
  return absl::OkStatus();
}

absl::Status ServedCertificates::Show(const Certificates& certificates) {
  TlsContext::Options options = {.key_and_chain = certificates.key_and_chain, .client_ca = {}};
  ASSIGN_OR_RETURN(auto for_anybody, TlsContext::Make(options));
  std::shared_ptr<const TlsContext> for_certified;
  if (asks_clients()) {
    options.client_ca = certificates.client_ca;
    options.check_client = [revocations = certificates.revocations](std::string_view certificate) {
      return revocations == nullptr ? absl::OkStatus() : revocations->Check(certificate);
    };
    ASSIGN_OR_RETURN(for_certified, TlsContext::Make(options));
  }
  const int64_t version = state_.loads + 1;
  RETURN_IF_ERROR(Replace(key_and_chain_, certificates.key_and_chain, version));
  RETURN_IF_ERROR(Replace(client_ca_, certificates.client_ca, version));
  revocations_ = certificates.revocations;
  for_anybody_ = std::move(for_anybody);
  for_certified_ = std::move(for_certified);
  state_.loads = version;
  state_.not_after = certificates.not_after;
  return absl::OkStatus();
}

void ServedCertificates::Refresh() {
  const absl::Status status = Change();
  if (status.ok()) return;
  {
    MutexLock lock(&mutex_);
    ++state_.refusals;
  }
  spdlog::warn("event=certificate_refused reason={}", LogValue(std::string(status.message())));
}

absl::Status ServedCertificates::CheckClient(absl::string_view certificate) const {
  RETURN_IF_ERROR(CheckDates(certificate));
  std::shared_ptr<const Revocations> revocations;
  {
    MutexLock lock(&mutex_);
    revocations = revocations_;
  }
  if (revocations == nullptr) return absl::OkStatus();
  return revocations->Check({certificate.data(), certificate.size()});
}

ServedCertificates::State ServedCertificates::state() const {
  MutexLock lock(&mutex_);
  return state_;
}

HttpStreamMaker StreamsFor(HttpSecurity security, const ServedCertificates* certificates) {
  if (security == HttpSecurity::kNone) return MakePlainStream;
  const auto peer = security == HttpSecurity::kMutualTls ? ServedCertificates::Peer::kCertified
                                                         : ServedCertificates::Peer::kAnybody;
  return [certificates, peer](int socket) {
    return MakeTlsStream(certificates->ContextFor(peer), socket);
  };
}

}  // namespace gemmd
