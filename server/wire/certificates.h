// SPDX-License-Identifier: Apache-2.0
//
// The daemon's certificate, its key and the authority of its clients, as files hold them. What is
// read is checked as far as one can without a peer, because gRPC takes anything and then refuses
// every connection.
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

namespace gemmd {

// Certificates that their authority has taken back before their time.
class Revocations {
 public:
  // Both are PEM: lists (X509 CRL), each of one of the authorities and signed by it.
  // Errors: InvalidArgument, naming --client-crl and the file.
  static absl::StatusOr<std::shared_ptr<const Revocations>> Read(const std::string& lists,
                                                                 const std::string& authorities,
                                                                 const std::string& file);
  ~Revocations();

  // Whether a peer's own certificate, in PEM, is on no list of its authority. A list counts until
  // it is replaced, also when its next one is late. Threads: any.
  // Errors: Unauthenticated.
  absl::Status Check(std::string_view certificate) const;

 private:
  struct Lists;
  explicit Revocations(std::unique_ptr<Lists> lists);

  const std::unique_ptr<Lists> lists_;
};

// Paths, each of a file of PEM, as --tls-cert, --tls-key, --client-ca and --client-crl name
// them.
struct CertificateFiles {
  std::string certificate;  // The daemon's own, and then those between it and a root.
  std::string key;          // Without a passphrase.
  std::string client_ca;    // Who may sign certificates of clients; empty: nobody.
  std::string client_crl;   // Those that are revoked; empty: none.
};

// What a new connection is shown.
struct KeyPair {
  std::string key_and_chain;  // PEM: the key, then the chain.
  absl::Time not_before;      // When the daemon's own certificate is valid.
  absl::Time not_after;
  std::shared_ptr<const TlsContext> context;  // For connections without gRPC.
};

// What a client must show.
struct ClientTrust {
  std::string client_ca;                           // PEM.
  std::shared_ptr<const Revocations> revocations;  // Null: none.
};

// The bytes of two files, to see whether they have changed.
struct CertificateBytes {
  std::string certificates;  // --tls-cert or --client-ca.
  std::string companion;     // --tls-key or --client-crl.

  bool operator==(const CertificateBytes&) const = default;
};

// Errors: InvalidArgument, naming the option and the file, where a file cannot be read or is longer
// than a megabyte.
absl::StatusOr<CertificateBytes> ReadKeyPair(const CertificateFiles& files);
absl::StatusOr<CertificateBytes> ReadClientTrust(const CertificateFiles& files);

// Errors: InvalidArgument, naming the option and the file but nothing of a key, where there is no
// certificate, no key, or one with a passphrase, or where the key is not that of the certificate.
absl::StatusOr<KeyPair> CheckKeyPair(const CertificateBytes& bytes, const CertificateFiles& files);
absl::StatusOr<ClientTrust> CheckClientTrust(const CertificateBytes& bytes,
                                             const CertificateFiles& files);

// The certificates that gRPC and the listener of the metrics show to peers and ask of them, which
// change while they serve.
//
// gRPC 1.51 takes new ones only from files that it looks at each second, and a key that is not that
// of the certificate then ends all handshakes. So it looks at files in memory, which hold nothing
// but what was checked: key and chain lie in one of them, which is replaced as a whole, with a time
// of its own, by which gRPC sees a change while it reads.
class ServedCertificates {
 public:
  struct State {
    absl::Time not_after;  // When the certificate that is shown ends.
    int64_t loads = 0;     // The first and each change.
    int64_t refusals = 0;  // Changes that made no sense.
  };

  // Errors: those of reading and checking the files; Unavailable where no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<ServedCertificates>> Load(CertificateFiles files);

  // What a peer must show; of kTls or kMtls.
  enum class Peer { kAnybody, kCertified };
  // They follow the certificates for as long as this lives.
  std::shared_ptr<grpc::ServerCredentials> CredentialsFor(Peer peer) const;

  // The same for connections without gRPC, as the certificates are now. Threads: any.
  std::shared_ptr<const TlsContext> ContextFor(Peer peer) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes what the files hold by now: the key pair, and what clients must show, each by itself. If
  // one makes no sense, as between the writing of one file and of the other, it stays as it was. A
  // certificate that is not valid yet waits until it is. Logs each change once. Threads: any.
  void Refresh() ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether there is an authority of clients.
  bool asks_clients() const { return !files_.client_ca.empty(); }

  // Whether a client's own certificate, in PEM, is valid now and not revoked. Threads: any.
  absl::Status CheckClient(absl::string_view certificate) const ABSL_LOCKS_EXCLUDED(mutex_);

  State state() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One half of the files.
  template <typename Checked>
  struct Half {
    std::optional<absl::StatusOr<CertificateBytes>> seen;
    std::optional<Checked> next;  // What was seen, as long as it is not shown.
    Checked shown;

    // Whether there is something new. Sets `next` if it makes sense.
    absl::StatusOr<bool> Look(absl::StatusOr<CertificateBytes> bytes,
                              absl::StatusOr<Checked> (*check)(const CertificateBytes&,
                                                               const CertificateFiles&),
                              const CertificateFiles& files);
  };

  ServedCertificates(CertificateFiles files, FileDescriptor key_and_chain,
                     FileDescriptor client_ca);
  // The reasons why a half was not taken.
  std::vector<absl::Status> Change() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LookAtKeyPair(absl::StatusOr<CertificateBytes> bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Shows what is next if its time has come, and tells it.
  absl::Status ShowNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Show(const KeyPair& key_pair, const ClientTrust& clients)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction. The numbers of the descriptors stay, what they stand for changes.
  const CertificateFiles files_;
  const FileDescriptor key_and_chain_;
  const FileDescriptor client_ca_;

  mutable Mutex mutex_;
  Half<KeyPair> key_pair_ ABSL_GUARDED_BY(mutex_);
  Half<ClientTrust> clients_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const TlsContext> for_certified_ ABSL_GUARDED_BY(mutex_);
  State state_ ABSL_GUARDED_BY(mutex_) = {.not_after = absl::InfinitePast()};
};

// How the listener of the metrics speaks at an address. Borrows the certificates, which are null
// where `security` needs none.
HttpStreamMaker StreamsFor(HttpSecurity security, const ServedCertificates* certificates);

}  // namespace gemmd
