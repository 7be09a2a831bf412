// SPDX-License-Identifier: Apache-2.0
//
// cuda_rows: prints what the code of each row of kCudaRows is made of on a chip, also that for
// operands across k and for factors of blocks: a line
//   OPCODE DIVISOR MOVES MNEMONIC NAME TYPE
// where TYPE is the row as a type (row_type.h), which its kernel is a template of, OPCODE is the
// instruction of the tensor core, "none" where the row is emulated without one, and "absent" where
// the chip does not run it; DIVISOR is what the number of instructions is a multiple of, MOVES how
// often registers move from warps to others, and MNEMONIC what PTX calls the row's own. usage:
// cuda_rows CHIP [sample]    "sample": only the rows of sample.h. Exit codes: 0, 2 usage.
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/row_table.h"
#include "kernels/cuda/row_type.h"
#include "kernels/cuda/rows.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/ptx.h"
#include "tests/kernels/census/sample.h"
#include "tests/kernels/tensor_unit.h"

namespace gemmd {
namespace {

// Also for emulated rows: s4 and u4 become products of 8-bit integers, fp8 products of f16, and b1
// as mma::LoweringOn says.
std::string OpcodeOf(const CudaRow& row, mma::Chip chip) {
  const mma::Instruction& instruction = row.instruction;
  if (!RunsOn(row, chip)) return "absent";
  if (mma::SupportOn(instruction, chip) == mma::Support::kNative) {
    return Concat(TensorUnitOf(instruction), HasWarpgroups(row) ? "GMMA" : "MMA");
  }
  if (instruction.products() > 1) return "none";
  if (instruction.a == ElementType::kF64) return "DMMA";
  if (instruction.bit_count != mma::BitCount::kNone && chip == mma::Chip::kSm90) return "BMMA";
  return IsInteger(instruction.a) ? "IMMA" : "HMMA";
}

// Every part of a step of a tile has this many. An emulated instruction may be a function that all
// parts call.
int DivisorOf(const CudaRow& row, mma::Chip chip) {
  if (mma::SupportOn(row.instruction, chip) != mma::Support::kNative) return 1;
  if (HasWarpgroups(row)) return InstructionsDown(row) * StepsOfTile(row);
  const int parts = HasRingOn(row, chip) ? StreamedParts(row) : PartsOfB(row);
  return InstructionsDown(row) * InstructionsAcross(row) / parts;
}

// In both directions.
int MovesOf(const CudaRow& row, mma::Chip chip) {
  return RunsOn(row, chip) && MovesRegisters(row, chip) ? 2 : 0;
}

std::string Demangled(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string copy = text == nullptr ? name : text;
  std::free(text);
  return copy;
}

constexpr Across kAllAcross[] = {Across::kNone, Across::kA, Across::kB, Across::kBoth};

// Every row that has code.
inline constexpr auto kRowsWithCode = CollectRows([](const auto& add) {
  for (CudaRow row : kCudaRows) {
    for (const Across across : kAllAcross) {
      row.across = across;
      if (across == Across::kNone || CanReadAcross(row)) add(row);
    }
    row.across = Across::kNone;
    if (ScalesPromotedSums(row.instruction, row.promotion_k)) add(WithFactors(row));
  }
});

std::string NameOf(const CudaRow& row) {
  static constexpr std::string_view kSuffixes[] = {"", "_across_a", "_across_b", "_across_ab"};
  const auto* const base = std::find_if(kCudaRows.begin(), kCudaRows.end(), [&row](CudaRow one) {
    if (row.scales_sums) return WithFactors(one) == row;
    one.across = row.across;
    return one == row;
  });
  const auto index = static_cast<size_t>(base - kCudaRows.begin());
  return Concat(CudaKernels()[index].name,
                row.scales_sums ? "_blocks" : kSuffixes[static_cast<size_t>(row.across)]);
}

template <size_t... kAt>
std::vector<std::string> TypeNames(std::index_sequence<kAt...>) {
  return {Demangled(typeid(typename row_type::RowAt<kRowsWithCode, kAt>::Type).name())...};
}

int Main(int argc, char** argv) {
  const std::optional<mma::Chip> chip =
      argc >= 2 ? mma::ChipFromName(argv[1]) : std::optional<mma::Chip>();
  const bool samples = argc == 3 && std::string_view(argv[2]) == "sample";
  if (!chip || (argc != 2 && !samples)) {
    std::fprintf(stderr, "usage: cuda_rows CHIP [sample]\n");
    return 2;
  }
  const std::vector<std::string> types =
      TypeNames(std::make_index_sequence<kRowsWithCode.size()>());
  for (size_t i = 0; i < kRowsWithCode.size(); ++i) {
    const CudaRow& row = kRowsWithCode[i];
    if (samples && !IsSampled(row)) continue;
    std::printf("%s %d %d %s %s %s\n", OpcodeOf(row, *chip).c_str(), DivisorOf(row, *chip),
                MovesOf(row, *chip), std::string(mma::PtxOf(row.instruction).view()).c_str(),
                NameOf(row).c_str(), types[i].c_str());
  }
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
