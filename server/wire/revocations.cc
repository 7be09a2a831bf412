// SPDX-License-Identifier: Apache-2.0
#include "server/wire/revocations.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/text.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {
namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::Reader;
using List = openssl::RevocationList;

// Whether reading ended where the file does, not at something broken. What OpenSSL leaves there,
// gRPC would take for its own.
bool WasReadToTheEnd() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

bool IsSignedBy(X509_CRL* list, const Certificate& authority) {
  return X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_subject_name(authority.get())) == 0 &&
         X509_CRL_verify(list, X509_get0_pubkey(authority.get())) == 1;
}

std::vector<Certificate> ReadCertificates(const std::string& pem) {
  const Bio reader = Reader(pem);
  std::vector<Certificate> all;
  while (Certificate next{PEM_read_bio_X509_AUX(reader.get(), nullptr, nullptr, nullptr)}) {
    all.push_back(std::move(next));
  }
  ERR_clear_error();
  return all;
}

}  // namespace

struct Revocations::Lists {
  std::vector<List> all;
};

absl::StatusOr<std::shared_ptr<const Revocations>> Revocations::Read(const std::string& lists,
                                                                     const std::string& authorities,
                                                                     const std::string& file) {
  const auto bad = [&file](std::string_view want) {
    ERR_clear_error();
    return absl::InvalidArgumentError(GotWant("client-crl", file, want));
  };
  const std::vector<Certificate> signers = ReadCertificates(authorities);
  auto read = std::make_unique<Lists>();
  const Bio reader = Reader(lists);
  while (List next{PEM_read_bio_X509_CRL(reader.get(), nullptr, nullptr, nullptr)}) {
    const bool is_known =
        std::any_of(signers.begin(), signers.end(),
                    [&](const Certificate& signer) { return IsSignedBy(next.get(), signer); });
    if (!is_known) return bad("lists that an authority of --client-ca has signed");
    read->all.push_back(std::move(next));
  }
  if (!WasReadToTheEnd() || read->all.empty()) {
    return bad("lists of revoked certificates in PEM, all of them whole");
  }
  return std::shared_ptr<const Revocations>(new Revocations(std::move(read)));
}

Revocations::Revocations(std::unique_ptr<Lists> lists) : lists_(std::move(lists)) {}
Revocations::~Revocations() = default;

absl::Status Revocations::Check(std::string_view certificate) const {
  const Certificate peer(PEM_read_bio_X509(Reader(certificate).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (peer == nullptr) return absl::UnauthenticatedError("no certificate");
  const X509_NAME* const issuer = X509_get_issuer_name(peer.get());
  for (const List& list : lists_->all) {
    X509_REVOKED* entry = nullptr;
    if (X509_NAME_cmp(X509_CRL_get_issuer(list.get()), issuer) == 0 &&
        X509_CRL_get0_by_cert(list.get(), &entry, peer.get()) == 1) {
      return absl::UnauthenticatedError("the certificate is revoked");
    }
  }
  return absl::OkStatus();
}

}  // namespace gemmd
