// SPDX-License-Identifier: Apache-2.0
//
// The recording of one variant: its inputs, and its file in the format of tests/vectors/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/bench/record/families.h"
#include "kernels/bench/record/variants.h"
#include "kernels/mma/chip.h"

namespace gemmd {

// The words of all cases, operand by operand: registers lane by lane; for wmma whole matrices.
struct Recording {
  size_t cases = 0;
  std::vector<uint32_t> a;
  std::vector<uint32_t> b;
  std::vector<uint32_t> c;
  std::vector<uint32_t> metadata;  // Sparse only.
  std::vector<uint32_t> d;
};

// The inputs; D stays empty. Case i belongs to family i mod the number of families. The inputs
// depend only on the variant and the seed, not on what else is recorded.
Recording MakeInputs(const Variant& variant, const std::vector<OperandFamily>& families,
                     size_t cases, uint64_t seed);

// Fills D with the simulator's results.
std::vector<uint32_t> Simulate(const Variant& variant, mma::Chip chip, const Recording& inputs);

// False if it could not be written.
[[nodiscard]] bool WriteFile(const std::string& path, const Recording& recording);

}  // namespace gemmd
