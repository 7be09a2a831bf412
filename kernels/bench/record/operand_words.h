// SPDX-License-Identifier: Apache-2.0
//
// Operands as a recording holds them: registers lane by lane (B of a warpgroup: shared memory,
// column after column), of wmma the matrices in memory, in the order that the name says, C and D by
// rows, tight, packed low bits first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/mma/fragment.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// Words of one case.
size_t WordsOf(const mma::Instruction& instruction, mma::Operand operand);

// `matrix`: raw bits of elements, row major, one independent product after the other. Writes all
// words.
void Pack(const mma::Instruction& instruction, mma::Operand operand,
          const std::vector<uint64_t>& matrix, std::span<uint32_t> words);

std::vector<uint64_t> Unpack(const mma::Instruction& instruction, mma::Operand operand,
                             std::span<const uint32_t> words);

}  // namespace gemmd
