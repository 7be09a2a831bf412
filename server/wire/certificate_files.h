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

struct Certificates {
  std::string key_and_chain;                       // PEM: the key, then the chain.
  std::string client_ca;                           // PEM.
  std::shared_ptr<const Revocations> revocations;  // Null: none.
  absl::Time not_before;                           // When the daemon's own certificate is valid.
  absl::Time not_after;
};

// The bytes of the files, to see whether they have changed.
struct CertificateBytes {
  std::string certificate;
  std::string key;
  std::string client_ca;
  std::string client_crl;

  bool operator==(const CertificateBytes&) const = default;
};

// Errors: InvalidArgument, naming the option and the file, where a file cannot be read or is longer
// than a megabyte.
absl::StatusOr<CertificateBytes> ReadCertificateFiles(const CertificateFiles& files);

// Errors: InvalidArgument, naming the option and the file but nothing of a key, where there is no
// certificate, no key, or one with a passphrase, or where the key is not that of the certificate.
absl::StatusOr<Certificates> CheckCertificates(const CertificateBytes& bytes,
                                               const CertificateFiles& files);

}  // namespace gemmd
