// SPDX-License-Identifier: Apache-2.0
//
// The default recipe of a chip: how products are summed if the request names no kernel. It depends
// only on the chip and the types (of A and B, the accumulation type, the bit operation, the form of
// a sparse A and of block factors), never on extents, rates or load. So an element of D depends
// only on its row of A, its column of B and the epilogue, and a simulator gives the bits of the
// GPU.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "kernels/problem.h"

namespace gemmd {

// A simulated kernel with the default recipe for a valid problem's types; null if the chip has no
// instruction for them. The order of preference among the chip's instructions is: native ones of
// the tensor core; wgmma, then mma, then wmma; without block factors if the problem has none; in
// the accumulation type; the deepest along k. Sums are promoted if the chip keeps few bits of them
// (NeedsPromotion), unless the problem asks for fast accumulation.
const Kernel* DefaultRecipe(mma::Chip chip, const Problem& problem);

// Whether both kernels always give the same bits on the chip: they share an instruction, or their
// instructions make the same chain of fused sums or of exact integers.
bool GiveSameBits(const Kernel& x, const Kernel& y, mma::Chip chip);

// The simulator's kernel with the same bits as a kernel with an instruction: the one with its
// instruction and promotion. Null if there is none.
const Kernel* SimulatedKernel(const Kernel& kernel);

// A description of how a kernel sums products on the chip: "sums of 16 products, 25 fraction bits,
// rounded toward zero to f32; in ascending k, not split". Kernels without an instruction say how
// they compute.
std::string DescribeRecipe(const Kernel& kernel, mma::Chip chip);

}  // namespace gemmd
