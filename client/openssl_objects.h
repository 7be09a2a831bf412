// SPDX-License-Identifier: Apache-2.0
//
// Objects of OpenSSL, which free themselves.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/strings/string_view.h"

namespace gemmd::tls {

struct Free {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Bio = std::unique_ptr<BIO, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Context = std::unique_ptr<SSL_CTX, Free>;
using Certificate = std::unique_ptr<X509, Free>;

// Reads bytes that outlive it.
inline Bio Reader(absl::string_view bytes) {
  return Bio(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

}  // namespace gemmd::tls
