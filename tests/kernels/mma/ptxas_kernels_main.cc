// SPDX-License-Identifier: Apache-2.0
//
// ptxas_kernels: prints PTX for one target with a kernel around every instruction, and what the
// tables of kernels/mma expect of it. Each kernel follows a line
//   // kernel NAME SUPPORT OPCODE COUNT INSTRUCTION
// where COUNT instructions OPCODE of the tensor core are what a native instruction becomes.
// usage: ptxas_kernels TARGET available|unavailable    Exit codes: 0, 2 usage.
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/ptx.h"
#include "tests/kernels/tensor_unit.h"

namespace gemmd {
namespace {

using mma::Chip;
using mma::Family;
using mma::Instruction;
using mma::Operand;

std::string OpcodeOf(const Instruction& instruction) {
  return absl::StrCat(std::string(TensorUnitOf(instruction)),
                      instruction.is_warpgroup() ? "GMMA" : "MMA");
}

// How many tensor core instructions a native instruction becomes.
int OpcodesOf(const Instruction& instruction, Chip chip) {
  if (instruction.products() == 4) return instruction.d == ElementType::kF32 ? 4 : 2;
  const bool is_one = instruction.family != Family::kWmma || instruction.m * instruction.n == 64;
  if (is_one) return 1;
  if (instruction.a == ElementType::kTf32) return 4;  // 16 x 8, of depth 4.
  return chip == Chip::kSm75 ? 4 : 2;                 // 16 x 8; Turing's are half as deep.
}

// Loads registers "%PREFIX0 ..." from addresses that differ between threads, and stores them.
class KernelText {
 public:
  KernelText(const Instruction& instruction, std::string_view name) : instruction_(instruction) {
    Line(absl::StrCat(".visible .entry ", std::string(name), "(.param .u64 p) {"));
    Line(".reg .b64 %address, %offset; .reg .b32 %thread; .reg .pred %always;");
    Line(
        "ld.param.u64 %address, [p]; mov.u32 %thread, %tid.x; mul.wide.u32 %offset, %thread, "
        "4096;");
    Line("add.s64 %address, %address, %offset; setp.ne.b32 %always, %thread, -1;");
  }

  std::string Finish() {
    Line("ret; }");
    return text_;
  }

  void Line(const std::string& line) { text_ += line + "\n"; }

  // The registers of an operand as a vector expression, declared and loaded.
  std::string Load(Operand operand, const std::string& prefix) {
    const std::string vector = Declare(operand, prefix);
    for (int i = 0; i < Registers(operand); ++i) {
      Line(absl::StrCat("ld.global", Type(operand), " %", prefix, i, ", ", Place(), ";"));
    }
    return vector;
  }

  std::string Declare(Operand operand, const std::string& prefix) {
    Line(absl::StrCat(".reg ", Type(operand), " %", prefix, "<", Registers(operand), ">;"));
    std::string vector = "{";
    for (int i = 0; i < Registers(operand); ++i) {
      absl::StrAppend(&vector, i > 0 ? ", %" : "%", prefix, i);
    }
    return vector + "}";
  }

  void Store(Operand operand, const std::string& prefix) {
    for (int i = 0; i < Registers(operand); ++i) {
      Line(absl::StrCat("st.global", Type(operand), " ", Place(), ", %", prefix, i, ";"));
    }
  }

  // Loads one more word.
  std::string LoadWord(const std::string& name) {
    Line(absl::StrCat(".reg .b32 %", name, "; ld.global.b32 %", name, ", ", Place(), ";"));
    return absl::StrCat("%", name);
  }

 private:
  std::string Type(Operand operand) const {
    return BitsOf(mma::TypeOf(instruction_, operand)) == 64 ? ".f64" : ".b32";
  }
  int Registers(Operand operand) const {
    const int words = mma::WordsPerLane(instruction_, operand);
    return BitsOf(mma::TypeOf(instruction_, operand)) == 64 ? words / 2 : words;
  }
  std::string Place() { return absl::StrCat("[%address+", 8 * places_++, "]"); }

  const Instruction& instruction_;
  std::string text_;
  int places_ = 0;
};

// mma, mma.sp and wmma.
std::string WarpKernel(const Instruction& instruction, std::string_view name) {
  KernelText kernel(instruction, name);
  std::string operands = kernel.Declare(Operand::kD, "d");
  absl::StrAppend(&operands, ", ", kernel.Load(Operand::kA, "a"));
  absl::StrAppend(&operands, ", ", kernel.Load(Operand::kB, "b"));
  absl::StrAppend(&operands, ", ", kernel.Load(Operand::kC, "c"));
  if (instruction.is_sparse()) absl::StrAppend(&operands, ", ", kernel.LoadWord("metadata"), ", 0");
  if (instruction.scales > 0) {
    absl::StrAppend(&operands, ", ", kernel.LoadWord("scale_a"), ", {0, 0}");
    absl::StrAppend(&operands, ", ", kernel.LoadWord("scale_b"), ", {0, 0}");
  }
  kernel.Line(absl::StrCat(std::string(mma::PtxOf(instruction).view()), " ", operands, ";"));
  kernel.Store(Operand::kD, "d");
  return kernel.Finish();
}

// A is in registers; B has an arbitrary descriptor.
std::string WarpgroupKernel(const Instruction& instruction, std::string_view name) {
  KernelText kernel(instruction, name);
  std::string operands = kernel.Load(Operand::kD, "d");
  absl::StrAppend(&operands, ", ", kernel.Load(Operand::kA, "a"), ", %address");
  if (instruction.is_sparse()) absl::StrAppend(&operands, ", ", kernel.LoadWord("metadata"), ", 0");
  operands += ", %always";
  if (IsFloat(instruction.a)) operands += ", 1, 1";    // Not negated.
  if (BitsOf(instruction.a) == 16) operands += ", 0";  // B not transposed.
  kernel.Line("wgmma.fence.sync.aligned;");
  kernel.Line(absl::StrCat(std::string(mma::PtxOf(instruction).view()), " ", operands, ";"));
  kernel.Line("wgmma.commit_group.sync.aligned;");
  kernel.Line("wgmma.wait_group.sync.aligned 0;");
  kernel.Store(Operand::kD, "d");
  return kernel.Finish();
}

// Three of the widths of a warpgroup's instructions: the smallest, a middle one and the largest.
bool IsSampled(const Instruction& instruction) {
  return !instruction.is_warpgroup() || instruction.n == 8 || instruction.n == 64 ||
         instruction.n == 256;
}

void Print(std::string_view target, Chip chip, bool want_available) {
  std::printf(".version 9.0\n.target %.*s\n.address_size 64\n", static_cast<int>(target.size()),
              target.data());
  int index = 0;
  for (const Instruction& instruction : mma::kInstructions) {
    if (!IsSampled(instruction)) continue;
    const mma::Support support = mma::SupportOn(instruction, chip);
    if ((support != mma::Support::kUnavailable) != want_available) continue;
    const std::string name = absl::StrCat("k", index++);
    const std::string text = instruction.is_warpgroup() ? WarpgroupKernel(instruction, name)
                                                        : WarpKernel(instruction, name);
    std::printf("// kernel %s %s %s %d %s\n%s", name.c_str(),
                std::string(mma::NameOf(support)).c_str(), OpcodeOf(instruction).c_str(),
                OpcodesOf(instruction, chip), std::string(mma::NameOf(instruction).view()).c_str(),
                text.c_str());
  }
}

int Main(int argc, char** argv) {
  const std::string_view target = argc == 3 ? argv[1] : "";
  const std::string_view which = argc == 3 ? argv[2] : "";
  const std::optional<Chip> chip =
      mma::ChipFromName(target.substr(0, target.find_last_not_of("af") + 1));
  if (!chip || (which != "available" && which != "unavailable")) {
    std::fprintf(stderr, "usage: ptxas_kernels TARGET available|unavailable\n");
    return 2;
  }
  Print(target, *chip, which == "available");
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
