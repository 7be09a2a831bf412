// SPDX-License-Identifier: Apache-2.0
//
// cuda_rows: prints what the code of each row of kCudaRows is made of on sm_90: a line
//   INDEX OPCODE NAME
// where OPCODE is the instruction of the tensor core, "none" where the row is emulated without one,
// and "absent" where the chip lacks it.
#include <cstdio>
#include <string>
#include <string_view>

#include "kernels/cuda/row_table.h"
#include "kernels/cuda/rows.h"
#include "kernels/mma/support.h"

namespace gemmd {
namespace {

// Emulated rows too: s4 and u4 become products of 8-bit integers, fp8 those of f16, and xor is made
// of and (mma::LoweringOn).
std::string_view OpcodeOf(const mma::Instruction& instruction) {
  const mma::Support support = mma::SupportOn(instruction, mma::Chip::kSm90);
  if (support == mma::Support::kUnavailable) return "absent";
  if (instruction.products() > 1) return "none";
  if (instruction.a == ElementType::kF64) return "DMMA";
  if (instruction.bit_count != mma::BitCount::kNone) return "BMMA";
  return IsInteger(instruction.a) ? "IMMA" : "HMMA";
}

int Main() {
  const absl::Span<const Kernel> kernels = CudaKernels();
  for (size_t i = 0; i < kCudaRows.size(); ++i) {
    std::printf("%zu %s %s\n", i, std::string(OpcodeOf(kCudaRows[i].instruction)).c_str(),
                std::string(kernels[i].name).c_str());
  }
  return 0;
}

}  // namespace
}  // namespace gemmd

int main() { return gemmd::Main(); }
