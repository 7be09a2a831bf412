// SPDX-License-Identifier: Apache-2.0
#include "server/store/sha256.h"

#include <openssl/evp.h>

#include <new>

namespace gemmd {

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) {
    if (evp == nullptr || EVP_DigestInit_ex(evp, EVP_sha256(), nullptr) != 1) {
      throw std::bad_alloc();
    }
  }
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  EVP_MD_CTX* evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Add(absl::Span<const std::byte> bytes) {
  // With a context that was set up it cannot fail.
  EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size());
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest = {};
  EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr);
  return digest;
}

Sha256Digest Sha256::Of(absl::Span<const std::byte> bytes) {
  Sha256 hash;
  hash.Add(bytes);
  return hash.Finish();
}

}  // namespace gemmd
