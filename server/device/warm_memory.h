// SPDX-License-Identifier: Apache-2.0
//
// Memory for large matrices that is used again. The system gives new memory by the page, and clears
// each at its first use: on a virtual machine that takes 50 ms for 64 MiB, ten times as long as
// writing them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "server/device/held_bytes.h"

namespace gemmd {

// What was taken may outlive this. Threads: any.
class WarmMemory {
 public:
  // Shorter pieces of memory come from malloc, which keeps them warm itself.
  static constexpr int64_t kLeastBytes = int64_t{1} << 20;
  // What a device keeps for the next product, and for how long where there is none.
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;
  static constexpr absl::Duration kKeptFor = absl::Seconds(1);

  // At most so many bytes that nobody uses are kept, full of kPoison where that is wanted.
  explicit WarmMemory(int64_t most_kept_bytes, bool poisons_freed = false);

  // Bytes of any value. None where there is no memory.
  std::optional<HeldBytes> Take(int64_t bytes);

  // Gives back all that nobody uses, and what comes back later, until more is taken.
  void Cool();
  int64_t kept_bytes() const;

 private:
  class Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace gemmd
