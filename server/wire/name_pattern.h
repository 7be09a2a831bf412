// SPDX-License-Identifier: Apache-2.0
//
// Shell patterns for names: `*`, `?`, `[a-z]`, `[!a-z]`, `[[:digit:]]`; a backslash takes what
// follows as it is. They match what fnmatch(3) matches in the C locale.
//
// A peer chooses the pattern, so the time is bounded: a name costs a few instructions for each of
// its bytes, whatever the pattern is, while fnmatch may look at all of a pattern for each of them.
#pragma once

#include <array>
#include <bitset>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/peer_text.h"

namespace gemmd {

class NamePattern {
 public:
  // `field` names the pattern in the error.
  // Errors: InvalidArgument for a pattern of more than kMaxNameBytes.
  static absl::StatusOr<NamePattern> Parse(std::string_view field, std::string_view pattern);

  // Threads: any.
  bool Matches(std::string_view name) const;

 private:
  using Bytes = std::bitset<256>;
  // A bit for each part of the pattern but stars: the beginning of a name matches the pattern up to
  // that part.
  __extension__ using Parts = unsigned __int128;
  static_assert(kMaxNameBytes <= 8 * sizeof(Parts));

  void AddPart(const Bytes& bytes);
  void AddStar();

  std::array<Parts, 256> takes_ = {};  // By byte: the parts that it matches.
  Parts before_star_ = 0;              // The parts after which a star stands.
  bool begins_with_star_ = false;
  bool is_never_matched_ = false;
  size_t parts_ = 0;
};

}  // namespace gemmd
