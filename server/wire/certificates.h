// SPDX-License-Identifier: Apache-2.0
//
// The daemon's certificate, its key and the certificate authority of its clients, read from files.
// They are checked as far as possible without a peer, because gRPC accepts any bytes and then fails
// every handshake.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/metrics/http.h"
#include "server/system/files.h"
#include "server/system/mutex.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {

// Lists of certificates that their authority has revoked. A list applies until it is replaced, even
// if its successor is overdue.
using Revocations = std::vector<openssl::RevocationList>;

// Paths of PEM files, as given by --tls-cert, --tls-key, --client-ca and --client-crl.
struct CertificateFiles {
  std::string certificate;  // The daemon's own certificate, then the intermediates.
  std::string key;          // Without a passphrase.
  std::string client_ca;    // Authorities that may sign client certificates; may be empty.
  std::string client_crl;   // Revocation lists; may be empty.
};

// What a new connection shows to its peer.
struct KeyPair {
  std::string key_and_chain;  // PEM: the key, then the chain.
  absl::Time not_before;      // When the daemon's own certificate becomes valid.
  absl::Time not_after;
  std::shared_ptr<const TlsContext> context;  // For connections without gRPC.
};

// What client certificates are checked against.
struct ClientTrust {
  std::string client_ca;                           // PEM.
  std::shared_ptr<const Revocations> revocations;  // Null if there are none.
};

// The bytes of two files, kept to see whether the files have changed.
struct CertificateBytes {
  std::string certificates;  // --tls-cert or --client-ca.
  std::string companion;     // --tls-key or --client-crl.

  bool operator==(const CertificateBytes&) const = default;
};

// Errors: InvalidArgument, naming the option and the file, if a file cannot be read or is longer
// than 1 MiB.
absl::StatusOr<CertificateBytes> ReadKeyPair(const CertificateFiles& files);
absl::StatusOr<CertificateBytes> ReadClientTrust(const CertificateFiles& files);

// Errors: InvalidArgument, naming the option and the file but no part of a key, if there is no
// certificate or no key, if the key has a passphrase, or if the key does not belong to the
// certificate.
absl::StatusOr<KeyPair> CheckKeyPair(const CertificateBytes& bytes, const CertificateFiles& files);
absl::StatusOr<ClientTrust> CheckClientTrust(const CertificateBytes& bytes,
                                             const CertificateFiles& files);

// The certificates that gRPC and the metrics listener show to peers and require of them. They may
// change while the server runs.
//
// gRPC 1.51 reloads certificates only from files, which it checks each second, and if the key does
// not match the certificate, all handshakes fail. So gRPC watches files in memory that hold only
// what was checked. Key and chain are in one such file, which is replaced as a whole and gets a new
// modification time, by which gRPC notices a change that happens while it reads.
class ServedCertificates {
 public:
  struct State {
    absl::Time not_after;  // When the certificate in use expires.
    int64_t loads = 0;     // The first load and each change.
    int64_t refusals = 0;  // Changes that were refused.
  };

  // Errors: those of reading and checking the files; Unavailable where no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<ServedCertificates>> Load(CertificateFiles files);

  // What a peer must show: kAnybody is for kTls, kCertified for kMtls.
  enum class Peer { kAnybody, kCertified };
  // The credentials follow changes of the certificates for as long as this object lives.
  std::shared_ptr<grpc::ServerCredentials> CredentialsFor(Peer peer) const;

  // The context for connections without gRPC, with the current certificates. Threads: any.
  std::shared_ptr<const TlsContext> ContextFor(Peer peer) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads the files again: the key pair and what clients must show, each on its own. If one of them
  // is invalid, for example while only one of two files has been written, the previous one stays in
  // use. A certificate that is not valid yet waits until it is. Logs each change once. Threads:
  // any.
  void Refresh() ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether there is an authority for client certificates.
  bool asks_clients() const { return !files_.client_ca.empty(); }

  // Whether a client's own certificate, in PEM, is valid now and not revoked. Threads: any.
  absl::Status CheckClient(absl::string_view certificate) const ABSL_LOCKS_EXCLUDED(mutex_);

  State state() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One pair of files: the key pair, or the trust in clients.
  template <typename Checked>
  struct Half {
    std::optional<absl::StatusOr<CertificateBytes>> seen;
    std::optional<Checked> next;  // What was read and is not in use yet.
    Checked shown;

    // Whether the files have changed. Sets `next` if what they hold is valid.
    absl::StatusOr<bool> Look(absl::StatusOr<CertificateBytes> bytes,
                              absl::StatusOr<Checked> (*check)(const CertificateBytes&,
                                                               const CertificateFiles&),
                              const CertificateFiles& files);
  };

  ServedCertificates(CertificateFiles files, FileDescriptor key_and_chain,
                     FileDescriptor client_ca);
  // The reasons why changes were refused.
  std::vector<absl::Status> Change() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LookAtKeyPair(absl::StatusOr<CertificateBytes> bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts `next` into use if its time has come, and logs it.
  absl::Status ShowNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Show(const KeyPair& key_pair, const ClientTrust& clients)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction. The descriptors' numbers stay; the files behind them change.
  const CertificateFiles files_;
  const FileDescriptor key_and_chain_;
  const FileDescriptor client_ca_;

  mutable Mutex mutex_;
  Half<KeyPair> key_pair_ ABSL_GUARDED_BY(mutex_);
  Half<ClientTrust> clients_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const TlsContext> for_certified_ ABSL_GUARDED_BY(mutex_);
  State state_ ABSL_GUARDED_BY(mutex_) = {.not_after = absl::InfinitePast()};
};

// The streams that the metrics listener makes of connections to an address. Borrows the
// certificates, which are null if `security` needs none.
HttpStreamMaker StreamsFor(HttpSecurity security, const ServedCertificates* certificates);

}  // namespace gemmd
