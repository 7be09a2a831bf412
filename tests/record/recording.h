// SPDX-License-Identifier: Apache-2.0
//
// One variant's recording: the inputs, and the file as tests/vectors/README.md has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/mma/chip.h"
#include "tests/record/families.h"
#include "tests/vectors/replay.h"

namespace gemmd {

// The words of all cases, operand by operand: registers lane by lane, of wmma whole matrices.
struct Recording {
  size_t cases = 0;
  std::vector<uint32_t> a;
  std::vector<uint32_t> b;
  std::vector<uint32_t> c;
  std::vector<uint32_t> metadata;  // Sparse only.
  std::vector<uint32_t> d;
};

// Inputs, D left empty. Case i is of family i mod the number of families. They depend on the
// variant and the seed alone, not on what else is recorded.
Recording MakeInputs(const Variant& variant, const std::vector<OperandFamily>& families,
                     size_t cases, uint64_t seed);

// D as the simulator has it.
std::vector<uint32_t> Simulate(const Variant& variant, mma::Chip chip, const Recording& inputs);

// False where it could not be written.
[[nodiscard]] bool WriteFile(const std::string& path, const Recording& recording);

}  // namespace gemmd
