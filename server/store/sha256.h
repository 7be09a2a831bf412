// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"

namespace gemmd {

using Sha256Digest = std::array<uint8_t, 32>;

// SHA-256 (FIPS 180-4) of bytes that come one after the other. Threads: one at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Add(absl::Span<const std::byte> bytes);

  // Once, after the last byte.
  Sha256Digest Finish();

  static Sha256Digest Of(absl::Span<const std::byte> bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace gemmd
