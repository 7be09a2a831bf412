// SPDX-License-Identifier: Apache-2.0
#include "server/store/digest.h"

#include <openssl/evp.h>
#include <sys/random.h>

#include <algorithm>
#include <new>

namespace gemmd {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

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

absl::StatusOr<RandomId> RandomId::Make() {
  RandomId id;
  // So few bytes come whole, or not at all.
  if (getrandom(id.bytes.data(), id.bytes.size(), 0) != static_cast<ssize_t>(kBytes)) {
    return absl::UnavailableError("id: the system gives no random numbers");
  }
  return id;
}

std::optional<RandomId> RandomId::FromBytes(std::string_view bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  RandomId id;
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  return id;
}

std::optional<RandomId> RandomId::FromHex(std::string_view digits) {
  if (digits.size() != 2 * kBytes) return std::nullopt;
  RandomId id;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t value = kDigits.find(digits[i]);
    if (value == std::string_view::npos) return std::nullopt;
    id.bytes[i / 2] = static_cast<uint8_t>(id.bytes[i / 2] << 4 | value);
  }
  return id;
}

std::string RandomId::ToBytes() const { return std::string(bytes.begin(), bytes.end()); }

std::string RandomId::ToHex() const {
  std::string digits;
  for (const uint8_t byte : bytes) {
    digits += kDigits[byte >> 4];
    digits += kDigits[byte & 15];
  }
  return digits;
}

}  // namespace gemmd
