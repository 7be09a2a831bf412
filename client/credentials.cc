// SPDX-License-Identifier: Apache-2.0
#include "client/credentials.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/const_init.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "client/address.h"
#include "client/openssl_objects.h"

namespace gemmd {
namespace {

constexpr size_t kMostTokenBytes = 8192;

using tls::Certificate;
using tls::Key;
using tls::Reader;

absl::Status Bad(absl::string_view option, absl::string_view got, absl::string_view want) {
  ERR_clear_error();  // What OpenSSL leaves there, gRPC would take for its own.
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": got \"", absl::CEscape(got), "\", want ", want));
}

absl::StatusOr<std::string> ReadFile(absl::string_view option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) return Bad(option, path, "a file that can be read");
  return bytes;
}

// A passphrase is never asked for at the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*is_write*/, void* /*data*/) { return -1; }

// As gRPC reads it: TRUSTED CERTIFICATE too.
Certificate FirstCertificate(absl::string_view pem) {
  return Certificate(PEM_read_bio_X509_AUX(Reader(pem).get(), nullptr, nullptr, nullptr));
}

Key FirstKey(const std::string& pem) {
  return Key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
}

struct CertificateBlocks {
  std::string whole;
  std::vector<int> broken;  // Numbers of certificates, from 1.
};

// Reads each block by itself: one without an end would swallow the next one.
CertificateBlocks BlocksOf(const std::string& pem) {
  constexpr absl::string_view kBegin = "-----BEGIN ";
  CertificateBlocks blocks;
  int number = 0;
  const std::vector<absl::string_view> texts = absl::StrSplit(pem, kBegin);
  for (size_t i = 1; i < texts.size(); ++i) {
    const absl::string_view label = texts[i].substr(0, texts[i].find("-----"));
    if (label != "CERTIFICATE" && !absl::EndsWith(label, " CERTIFICATE")) continue;
    ++number;
    const std::string block = absl::StrCat(kBegin, texts[i]);
    if (FirstCertificate(block) == nullptr) {
      blocks.broken.push_back(number);
    } else {
      absl::StrAppend(&blocks.whole, block);
    }
  }
  ERR_clear_error();
  return blocks;
}

// Once in this process: more clients are made than files are changed.
void WarnOnce(const std::string& line) {
  ABSL_CONST_INIT static absl::Mutex mutex(absl::kConstInit);
  static auto& told = *new std::set<std::string>;
  absl::MutexLock lock(&mutex);
  if (told.insert(line).second) std::fprintf(stderr, "gemmd: %s\n", line.c_str());
}

absl::Status ReadOwn(const TlsOptions& tls, grpc::SslCredentialsOptions& made) {
  if (tls.certificate_file.empty()) {
    return Bad("options.tls.certificate_file", "", "that of the key in options.tls.key_file");
  }
  if (tls.key_file.empty()) {
    return Bad("options.tls.key_file", "", "that of the certificate");
  }
  auto chain = ReadFile("options.tls.certificate_file", tls.certificate_file);
  if (!chain.ok()) return chain.status();
  auto key_pem = ReadFile("options.tls.key_file", tls.key_file);
  if (!key_pem.ok()) return key_pem.status();
  const Certificate own = FirstCertificate(*chain);
  if (own == nullptr || !BlocksOf(*chain).broken.empty()) {
    return Bad("options.tls.certificate_file", tls.certificate_file,
               "certificates in PEM, all of them whole");
  }
  const Key key = FirstKey(*key_pem);
  if (key == nullptr) {
    return Bad("options.tls.key_file", tls.key_file, "a private key in PEM without a passphrase");
  }
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return Bad("options.tls.key_file", tls.key_file,
               absl::StrCat("the key of the certificate in ", tls.certificate_file));
  }
  made.pem_cert_chain = *std::move(chain);
  made.pem_private_key = *std::move(key_pem);
  return absl::OkStatus();
}

bool IsSet(const TlsOptions& tls) {
  return !(tls.ca_file.empty() && tls.certificate_file.empty() && tls.key_file.empty() &&
           tls.server_name.empty());
}

absl::Status CheckToken(absl::string_view address, bool is_encrypted,
                        const ClientOptions& options) {
  const std::string& token = options.token;
  const bool is_good =
      token.size() <= kMostTokenBytes &&
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!is_good) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.token: got ", token.size(),
                     " characters, want at most 8192 printable ones without spaces"));
  }
  if (token.empty() || is_encrypted || IsUnix(address)) return absl::OkStatus();
  if (options.use_proxy) {
    return Bad("address", address, "tls: before it, so that the proxy does not read options.token");
  }
  if (IsLoopback(address)) return absl::OkStatus();
  return Bad("address", address,
             "tls: before it, or one of loopback, so that nobody else reads options.token");
}

}  // namespace

bool HasTls(absl::string_view address, const TlsOptions& tls) {
  return WithoutTls(address).size() != address.size() || IsSet(tls);
}

absl::StatusOr<std::string> ReadAuthorities(const std::string& path) {
  const auto pem = ReadFile("options.tls.ca_file", path);
  if (!pem.ok()) return pem.status();
  CertificateBlocks blocks = BlocksOf(*pem);
  if (blocks.whole.empty()) return Bad("options.tls.ca_file", path, "certificates in PEM");
  if (!blocks.broken.empty()) {
    WarnOnce(absl::StrCat("options.tls.ca_file: got \"", absl::CEscape(path),
                          "\", whose certificate ", absl::StrJoin(blocks.broken, ", "),
                          " is broken and left out, want certificates in PEM, all of them whole"));
  }
  return std::move(blocks.whole);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    absl::string_view address, const ClientOptions& options) {
  const TlsOptions& tls = options.tls;
  const absl::string_view target = WithoutTls(address);
  const bool has_tls = HasTls(address, tls);
  if (has_tls && IsUnix(target)) {
    return Bad("address", address, "host:port, since TLS is not spoken over unix sockets");
  }
  if (has_tls && options.credentials != nullptr) {
    return Bad("options.credentials", "those of gRPC", "none beside TLS by tls: or options.tls");
  }
  absl::Status status = CheckToken(address, has_tls || options.credentials != nullptr, options);
  if (!status.ok()) return status;
  if (options.credentials != nullptr) return options.credentials;
  if (!has_tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions made;
  if (!tls.ca_file.empty()) {
    auto authorities = ReadAuthorities(tls.ca_file);
    if (!authorities.ok()) return authorities.status();
    made.pem_root_certs = *std::move(authorities);
  }
  const bool must_show = absl::StartsWith(address, "mtls:");
  if (must_show || !tls.certificate_file.empty() || !tls.key_file.empty()) {
    status = ReadOwn(tls, made);
    if (!status.ok()) return status;
  }
  return grpc::SslCredentials(made);
}

}  // namespace gemmd
