// SPDX-License-Identifier: Apache-2.0
#include "server/store/digest.h"

#include <openssl/evp.h>
#include <sys/random.h>

#include <algorithm>
#include <new>

#include "absl/strings/escaping.h"

namespace gemmd {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

// Cached: OpenSSL looks it up under a process-wide lock, which takes longer than hashing a token.
const EVP_MD* Algorithm() {
  static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return sha256;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) { Begin(); }

void Sha256::Begin() {
  const EVP_MD* const sha256 = Algorithm();
  if (context_ == nullptr || sha256 == nullptr ||
      EVP_DigestInit_ex(context_.get(), sha256, nullptr) != 1) {
    throw std::bad_alloc();
  }
}

// This and Finish cannot fail with an initialized context.
void Sha256::Add(absl::Span<const std::byte> bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest = {};
  EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr);
  return digest;
}

// Every call hashes a token, so each thread keeps a context.
Sha256Digest Sha256::Of(absl::Span<const std::byte> bytes) {
  thread_local Sha256 hash;
  hash.Begin();
  hash.Add(bytes);
  return hash.Finish();
}

absl::StatusOr<RandomId> RandomId::Make() {
  RandomId id;
  // For so few bytes, getrandom returns all or none.
  if (getrandom(id.bytes.data(), id.bytes.size(), 0) != static_cast<ssize_t>(kBytes)) {
    return absl::UnavailableError("id: got no random numbers from the system");
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
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace gemmd
