// SPDX-License-Identifier: Apache-2.0
#include "server/wire/certificate_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <array>
#include <ctime>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/regular_file.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;

using openssl::Bio;
using openssl::Certificate;
using openssl::Key;
using openssl::Reader;

absl::Status Bad(std::string_view option, std::string_view file, std::string_view want) {
  ERR_clear_error();  // What OpenSSL leaves there, gRPC would take for its own.
  return absl::InvalidArgumentError(GotWant(option, file, want));
}

absl::StatusOr<std::string> ReadFile(std::string_view option, const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadRegularFile(path, kMostBytes);
  if (!bytes.ok()) {
    const std::string why(bytes.status().message());
    return Bad(option, path, Concat("a file that can be read (", why, ")"));
  }
  if (bytes->size() > kMostBytes) return Bad(option, path, "a file of at most a megabyte");
  return bytes;
}

// The certificates of a file; gRPC itself would stop at the first that is broken. Reads TRUSTED
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
  const unsigned long error = ERR_peek_last_error();
  const bool is_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (chain.empty() || !is_end) return Bad(option, file, "certificates in PEM, all of them whole");
  return chain;
}

// A passphrase is never asked for at the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*is_write*/, void* /*data*/) { return -1; }

absl::StatusOr<Key> ReadKey(const std::string& bytes, const std::string& file) {
  const Bio reader = Reader(bytes);
  Key key(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr)
    return Bad("tls-key", file, "a private key in PEM, whole and without a passphrase");
  return key;
}

std::string TextOf(const Bio& bio) {
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(length)};
}

// `write`: with what an authority is trusted for or, since gRPC does not read that in a chain,
// without.
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
  if (!files.client_ca.empty()) {
    ASSIGN_OR_RETURN(const std::vector<Certificate> authorities,
                     ReadChain("client-ca", bytes.certificates, files.client_ca));
    checked.client_ca = PemOf(authorities, PEM_write_bio_X509_AUX);
  }
  if (!files.client_crl.empty()) {
    ASSIGN_OR_RETURN(checked.revocations,
                     Revocations::Read(bytes.companion, bytes.certificates, files.client_crl));
  }
  return checked;
}

}  // namespace gemmd
