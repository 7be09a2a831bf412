// SPDX-License-Identifier: Apache-2.0
//
// Marks that a worker must have overwritten once it says that a result is there. They lie on every
// page of D, so that neither a worker that only says OK nor one that copied a part is believed, and
// what an earlier job left in the staging area is never sent to another caller.
#pragma once

#include <array>
#include <cstddef>

#include "absl/types/span.h"

namespace gemmd {

class ResultStamps {
 public:
  static constexpr size_t kBytes = 16;
  static constexpr size_t kPageBytes = 4096;

  // Random, so that no result has such bytes.
  ResultStamps();

  // Marks the pages of D, and clears what is too short for a mark.
  void Put(absl::Span<std::byte> d) const;

  // Whether a mark is left.
  bool AreLeft(absl::Span<const std::byte> d) const;

 private:
  std::array<std::byte, kBytes> stamp_;
};

}  // namespace gemmd
