// SPDX-License-Identifier: Apache-2.0
//
// Marks that a worker must have overwritten once it says that a result is there. They lie at the
// beginning of every page of what it writes in the staging area, so that neither a worker that only
// says OK is believed nor one that left out a page, and what an earlier job left there is never
// sent to another caller. What was left out within a page does not show.
#pragma once

#include <array>
#include <cstddef>

#include "absl/types/span.h"
#include "server/crossing/job_layout.h"

namespace gemmd {

class ResultStamps {
 public:
  static constexpr size_t kBytes = kMarkBytes;
  static constexpr size_t kLeastBytes = kLeastMarkBytes;
  static constexpr size_t kPageBytes = 4096;

  // Random, so that no result has such bytes.
  ResultStamps();

  // Marks the pages, and clears the last one where it is too short for a mark.
  void Put(absl::Span<std::byte> d) const;

  // Whether a mark is left; of the first one, so many bytes count.
  bool AreLeft(absl::Span<const std::byte> d, size_t first_bytes = kBytes) const;

 private:
  std::array<std::byte, kBytes> stamp_;
};

}  // namespace gemmd
