// SPDX-License-Identifier: Apache-2.0
//
// The daemon's certificate, its key and the authority of its clients, as files hold them. What is
// read is checked as far as one can without a peer, because gRPC takes anything and then refuses
// every connection.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/metrics/tls_stream.h"
#include "server/wire/revocations.h"

namespace gemmd {

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

}  // namespace gemmd
