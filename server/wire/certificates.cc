// SPDX-License-Identifier: Apache-2.0
#include "server/wire/certificates.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/files.h"
#include "server/system/log.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {

namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::Key;
using openssl::Reader;
using List = openssl::RevocationList;

// Whether reading stopped at the end of the file and not at something broken. Clears OpenSSL's
// error queue, which gRPC would otherwise read as its own errors.
bool WasReadToTheEnd() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

bool IsSignedBy(X509_CRL* list, const Certificate& authority) {
  return X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_subject_name(authority.get())) == 0 &&
         X509_CRL_verify(list, X509_get0_pubkey(authority.get())) == 1;
}

// A peer's own certificate, in PEM; null if it is none.
Certificate ReadPeer(std::string_view certificate) {
  Certificate peer(PEM_read_bio_X509(Reader(certificate).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return peer;
}

// Errors: Unauthenticated if a list of its authority has the certificate. Null lists: there are
// none.
absl::Status CheckRevocations(const Revocations* lists, std::string_view certificate) {
  if (lists == nullptr) return absl::OkStatus();
  const Certificate peer = ReadPeer(certificate);
  if (peer == nullptr) return absl::UnauthenticatedError("no certificate");
  const X509_NAME* const issuer = X509_get_issuer_name(peer.get());
  for (const List& list : *lists) {
    X509_REVOKED* entry = nullptr;
    if (X509_NAME_cmp(X509_CRL_get_issuer(list.get()), issuer) == 0 &&
        X509_CRL_get0_by_cert(list.get(), &entry, peer.get()) == 1) {
      return absl::UnauthenticatedError("the certificate is revoked");
    }
  }
  return absl::OkStatus();
}

constexpr size_t kMaxBytes = size_t{1} << 20;

absl::Status Bad(std::string_view option, std::string_view file, std::string_view want) {
  ERR_clear_error();  // gRPC would otherwise read these errors as its own.
  return Invalid(option, file, want);
}

absl::StatusOr<std::string> ReadFile(std::string_view option, const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadRegularFile(path, kMaxBytes);
  if (!bytes.ok()) {
    const std::string why(bytes.status().message());
    return Bad(option, path, Concat("a readable file (", why, ")"));
  }
  if (bytes->size() > kMaxBytes) return Bad(option, path, "a file of at most 1 MiB");
  return bytes;
}

// The certificates of a file; gRPC itself would stop at the first broken one. Reads TRUSTED
// CERTIFICATE too, as gRPC does.
absl::StatusOr<std::vector<Certificate>> ReadChain(std::string_view option,
                                                   const std::string& bytes,
                                                   const std::string& file) {
  const Bio reader = Reader(bytes);
  std::vector<Certificate> chain;
  ERR_clear_error();
  while (Certificate next{PEM_read_bio_X509_AUX(reader.get(), nullptr, nullptr, nullptr)}) {
    chain.push_back(std::move(next));
  }
  if (!WasReadToTheEnd() || chain.empty()) return Bad(option, file, "complete certificates in PEM");
  return chain;
}

// Lists that one of the authorities has signed each.
absl::StatusOr<std::shared_ptr<const Revocations>> ReadRevocations(
    const std::string& bytes, const std::vector<Certificate>& authorities,
    const std::string& file) {
  auto lists = std::make_shared<Revocations>();
  const Bio reader = Reader(bytes);
  while (List next{PEM_read_bio_X509_CRL(reader.get(), nullptr, nullptr, nullptr)}) {
    const bool is_known =
        std::any_of(authorities.begin(), authorities.end(),
                    [&](const Certificate& signer) { return IsSignedBy(next.get(), signer); });
    if (!is_known) {
      return Bad("client-crl", file, "lists that an authority of --client-ca has signed");
    }
    lists->push_back(std::move(next));
  }
  if (!WasReadToTheEnd() || lists->empty()) {
    return Bad("client-crl", file, "complete revocation lists in PEM");
  }
  return lists;
}

// Prevents OpenSSL from asking for a passphrase at the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*is_write*/, void* /*data*/) { return -1; }

absl::StatusOr<Key> ReadKey(const std::string& bytes, const std::string& file) {
  const Bio reader = Reader(bytes);
  Key key(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr)
    return Bad("tls-key", file, "a complete private key in PEM without a passphrase");
  return key;
}

std::string TextOf(const Bio& bio) {
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(length)};
}

// `write` either includes what an authority is trusted for, or omits it, as for a chain, where gRPC
// does not read it.
std::string PemOf(const std::vector<Certificate>& chain, decltype(&PEM_write_bio_X509) write) {
  const Bio writer(BIO_new(BIO_s_mem()));
  for (const Certificate& certificate : chain) write(writer.get(), certificate.get());
  return TextOf(writer);
}

std::string PemOf(EVP_PKEY* key) {
  const Bio writer(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(writer.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(writer);
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm broken = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &broken) != 1) return absl::InfinitePast();
  return absl::FromTM(broken, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<CertificateBytes> ReadKeyPair(const CertificateFiles& files) {
  CertificateBytes bytes;
  ASSIGN_OR_RETURN(bytes.certificates, ReadFile("tls-cert", files.certificate));
  ASSIGN_OR_RETURN(bytes.companion, ReadFile("tls-key", files.key));
  return bytes;
}

absl::StatusOr<CertificateBytes> ReadClientTrust(const CertificateFiles& files) {
  CertificateBytes bytes;
  if (!files.client_ca.empty()) {
    ASSIGN_OR_RETURN(bytes.certificates, ReadFile("client-ca", files.client_ca));
  }
  if (!files.client_crl.empty()) {
    ASSIGN_OR_RETURN(bytes.companion, ReadFile("client-crl", files.client_crl));
  }
  return bytes;
}

absl::StatusOr<KeyPair> CheckKeyPair(const CertificateBytes& bytes, const CertificateFiles& files) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                   ReadChain("tls-cert", bytes.certificates, files.certificate));
  ASSIGN_OR_RETURN(const Key key, ReadKey(bytes.companion, files.key));
  X509* const own = chain.front().get();
  if (X509_check_private_key(own, key.get()) != 1) {
    return Bad("tls-key", files.key,
               Concat("the key of the first certificate in ", files.certificate));
  }
  KeyPair checked = {.key_and_chain = Concat(PemOf(key.get()), PemOf(chain, PEM_write_bio_X509)),
                     .not_before = TimeOf(X509_get0_notBefore(own)),
                     .not_after = TimeOf(X509_get0_notAfter(own)),
                     .context = nullptr};
  ASSIGN_OR_RETURN(checked.context,
                   TlsContext::Make({.key_and_chain = checked.key_and_chain, .client_ca = {}}));
  return checked;
}

absl::StatusOr<ClientTrust> CheckClientTrust(const CertificateBytes& bytes,
                                             const CertificateFiles& files) {
  ClientTrust checked;
  std::vector<Certificate> authorities;
  if (!files.client_ca.empty()) {
    ASSIGN_OR_RETURN(authorities, ReadChain("client-ca", bytes.certificates, files.client_ca));
    checked.client_ca = PemOf(authorities, PEM_write_bio_X509_AUX);
  }
  if (!files.client_crl.empty()) {
    ASSIGN_OR_RETURN(checked.revocations,
                     ReadRevocations(bytes.companion, authorities, files.client_crl));
  }
  return checked;
}

namespace {

// How often gRPC checks its files; it supports no shorter period.
constexpr int kSecondsBetweenLooks = 1;

absl::Status NoDescriptor() {
  return absl::UnavailableError("tls-cert: no file descriptor is left");
}

FileDescriptor EmptyFile() { return FileDescriptor(memfd_create("gemmd-tls", MFD_CLOEXEC)); }

std::string PathOf(const FileDescriptor& file) { return Concat("/proc/self/fd/", file.get()); }

// Replaces the file behind the descriptor atomically. `version` becomes its modification time in
// seconds.
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

// Later versions of gRPC support a minimum version of TLS; for 1.51 see main.
template <typename Credentials>
void TakeNothingBelowTls13(Credentials& credentials) {
  if constexpr (requires { credentials.set_min_tls_version(TLS1_3); }) {
    credentials.set_min_tls_version(TLS1_3);
  }
}

// Whether a certificate, in PEM, is valid now. OpenSSL checks its dates only in a full handshake,
// so a peer that resumes an earlier session could otherwise be served forever.
absl::Status CheckDates(absl::string_view certificate) {
  const Certificate peer = ReadPeer({certificate.data(), certificate.size()});
  if (peer == nullptr) return absl::UnauthenticatedError("no certificate");
  // Both return 0 if the date is malformed.
  const bool has_begun = X509_cmp_current_time(X509_get0_notBefore(peer.get())) < 0;
  const bool has_ended = X509_cmp_current_time(X509_get0_notAfter(peer.get())) <= 0;
  if (has_begun && !has_ended) return absl::OkStatus();
  return absl::UnauthenticatedError("the certificate is not valid now");
}

// Checks each client whose certificate comes from a known authority, even if the client resumes an
// earlier session. Borrows the certificates.
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
    return true;  // The check is complete.
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
    return Invalid("tls-cert", files_.certificate,
                   Concat("one that is valid now (it is from ", from, " to ", until, ")"));
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
      return CheckRevocations(revocations.get(), certificate);
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
  return CheckRevocations(revocations.get(), {certificate.data(), certificate.size()});
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
