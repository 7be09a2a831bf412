// SPDX-License-Identifier: Apache-2.0
//
// OpenSSL objects that free themselves.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string_view>

namespace gemmd::openssl {

template <auto kFree>
struct FreeBy {
  template <typename Object>
  void operator()(Object* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, FreeBy<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;
using Connection = std::unique_ptr<SSL, FreeBy<SSL_free>>;
using Context = std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>>;
using Certificate = std::unique_ptr<X509, FreeBy<X509_free>>;
using RevocationList = std::unique_ptr<X509_CRL, FreeBy<X509_CRL_free>>;

// Reads `bytes`, which must outlive the reader.
inline Bio Reader(std::string_view bytes) {
  return Bio(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

}  // namespace gemmd::openssl
