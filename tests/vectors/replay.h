// SPDX-License-Identifier: Apache-2.0
//
// Plays recordings of a chip back through the simulator: files of registers (mma, mma.sp, wgmma,
// wgmma.sp) or matrices (wmma), one variant of an instruction each, in the formats of README.md
// here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/bench/record/variants.h"
#include "kernels/mma/chip.h"

namespace gemmd {

struct ReplayResult {
  std::string error;  // The reason why the file could not be played; empty if it could.
  int64_t cases = 0;
  int64_t mismatches = 0;  // Counts elements of D.
  std::string first;       // The first mismatch, for people.
};

// Plays the words of one file.
ReplayResult Replay(const Variant& variant, mma::Chip chip, const std::vector<uint32_t>& words);

// Reads and plays one file.
ReplayResult ReplayFile(const std::string& path, mma::Chip chip);

}  // namespace gemmd
