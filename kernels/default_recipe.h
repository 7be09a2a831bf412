// SPDX-License-Identifier: Apache-2.0
//
// The default recipe of a chip: how products are added up if the request names no kernel. It is a
// function of the chip and of types alone (those of A and B, the accumulation type, the operation
// on bits, the form of a sparse A and of factors of blocks), never of extents, rates or load. So an
// element of D depends on its row of A, its column of B and the epilogue, and on nothing else, and
// a simulator gives the bits of the GPU.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "kernels/problem.h"

namespace gemmd {

// A simulated kernel with the default recipe for a valid problem's types; null if the chip has no
// instruction for them. Among the instructions of the chip the order of preference is: those of the
// tensor core itself, those of warpgroups, then mma, then wmma; without factors of blocks where
// the problem has none; in the accumulation type; the deepest along k. Sums are promoted if the
// chip keeps few bits of them (NeedsPromotion), unless the problem asks for fast accumulation.
const Kernel* DefaultRecipe(mma::Chip chip, const Problem& problem);

// Whether D always has the same bits by both kernels on the chip: they share an instruction, or
// theirs make the same chain of fused sums or of exact integers.
bool GiveSameBits(const Kernel& x, const Kernel& y, mma::Chip chip);

// The simulator's kernel that gives the bits of a kernel with an instruction: the one of its
// instruction and promotion. Null where there is none.
const Kernel* SimulatedKernel(const Kernel& kernel);

// How a kernel adds products up on the chip, for people: "sums of 16 products, 25 fraction bits,
// rounded toward zero to f32; in ascending k, not split". Kernels without an instruction say how
// they compute.
std::string DescribeRecipe(const Kernel& kernel, mma::Chip chip);

}  // namespace gemmd
