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

bool IsValidNow(const KeyPair& key_pair) {
  const absl::Time now = absl::Now();
  return key_pair.not_before <= now && now <= key_pair.not_after;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedCertificates>> ServedCertificates::Load(
    CertificateFiles files) {
  FileDescriptor key_and_chain = EmptyFile();
  FileDescriptor client_ca = EmptyFile();
  if (!key_and_chain.is_open() || !client_ca.is_open()) return NoDescriptor();
  std::unique_ptr<ServedCertificates> made(
      new ServedCertificates(std::move(files), std::move(key_and_chain), std::move(client_ca)));
  const std::vector<absl::Status> refused = made->Change();
  if (!refused.empty()) return refused.front();
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
  return peer == Peer::kCertified ? for_certified_ : key_pair_.shown.context;
}

template <typename Checked>
absl::StatusOr<bool> ServedCertificates::Half<Checked>::Look(
    absl::StatusOr<CertificateBytes> bytes,
    absl::StatusOr<Checked> (*check)(const CertificateBytes&, const CertificateFiles&),
    const CertificateFiles& files) {
  if (seen && *seen == bytes) return false;
  seen = std::move(bytes);
  next.reset();
  RETURN_IF_ERROR(seen->status());
  ASSIGN_OR_RETURN(next, check(**seen, files));
  return true;
}

absl::Status ServedCertificates::LookAtKeyPair(absl::StatusOr<CertificateBytes> bytes) {
  ASSIGN_OR_RETURN(const bool is_new, key_pair_.Look(std::move(bytes), CheckKeyPair, files_));
  if (!is_new || IsValidNow(*key_pair_.next)) return absl::OkStatus();
  const std::string from = Expiry(key_pair_.next->not_before);
  const std::string until = Expiry(key_pair_.next->not_after);
  if (state_.loads > 0) {
    return absl::InvalidArgumentError(
        GotWant("tls-cert", files_.certificate,
                Concat("one that is valid now (it is from ", from, " to ", until, ")")));
  }
  // The daemon starts all the same: its other addresses may not need this certificate.
  spdlog::warn("event=certificate_not_valid file={} from={} until={}", LogValue(files_.certificate),
               from, until);
  return absl::OkStatus();
}

std::vector<absl::Status> ServedCertificates::Change() {
  absl::StatusOr<CertificateBytes> key_pair = ReadKeyPair(files_);
  absl::StatusOr<CertificateBytes> clients = ReadClientTrust(files_);
  MutexLock lock(&mutex_);
  std::vector<absl::Status> refused = {
      LookAtKeyPair(std::move(key_pair)),
      clients_.Look(std::move(clients), CheckClientTrust, files_).status(), ShowNext()};
  std::erase(refused, absl::OkStatus());
  return refused;
}

absl::Status ServedCertificates::ShowNext() {
  const bool is_first = state_.loads == 0;
  if (is_first && !(key_pair_.next && clients_.next)) return absl::OkStatus();
  const bool has_key_pair = key_pair_.next && (is_first || IsValidNow(*key_pair_.next));
  if (!has_key_pair && !clients_.next) return absl::OkStatus();
  RETURN_IF_ERROR(Show(has_key_pair ? *key_pair_.next : key_pair_.shown,
                       clients_.next ? *clients_.next : clients_.shown));
  if (has_key_pair) key_pair_.shown = *std::exchange(key_pair_.next, std::nullopt);
  if (clients_.next) clients_.shown = *std::exchange(clients_.next, std::nullopt);
  ++state_.loads;
  state_.not_after = key_pair_.shown.not_after;
  spdlog::info("event=certificate_loaded file={} until={}", LogValue(files_.certificate),
               Expiry(state_.not_after));
  return absl::OkStatus();
}

absl::Status ServedCertificates::Show(const KeyPair& key_pair, const ClientTrust& clients) {
  std::shared_ptr<const TlsContext> for_certified;
  if (asks_clients()) {
    TlsContext::Options options = {.key_and_chain = key_pair.key_and_chain,
                                   .client_ca = clients.client_ca};
    options.check_client = [revocations = clients.revocations](std::string_view certificate) {
      return revocations == nullptr ? absl::OkStatus() : revocations->Check(certificate);
    };
    ASSIGN_OR_RETURN(for_certified, TlsContext::Make(options));
  }
  const int64_t version = state_.loads + 1;
  RETURN_IF_ERROR(Replace(key_and_chain_, key_pair.key_and_chain, version));
  RETURN_IF_ERROR(Replace(client_ca_, clients.client_ca, version));
  for_certified_ = std::move(for_certified);
  return absl::OkStatus();
}

void ServedCertificates::Refresh() {
  for (const absl::Status& refused : Change()) {
    {
      MutexLock lock(&mutex_);
      ++state_.refusals;
    }
    spdlog::warn("event=certificate_refused reason={}", LogValue(std::string(refused.message())));
  }
}

absl::Status ServedCertificates::CheckClient(absl::string_view certificate) const {
  RETURN_IF_ERROR(CheckDates(certificate));
  std::shared_ptr<const Revocations> revocations;
  {
    MutexLock lock(&mutex_);
    revocations = clients_.shown.revocations;
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
