// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/ptx_module.h"

#include <array>
#include <ostream>
#include <sstream>
#include <string_view>

#include "kernels/mma/fragment.h"
#include "kernels/mma/ptx.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::Operand;

// Bytes of a core matrix of shared memory: 8 columns of 16 bytes along k.
constexpr int kCoreBytes = 128;
constexpr int kCoreDepthBytes = 16;

// "{%a0, %a1}".
struct RegisterList {
  char name;
  int count;
};

std::ostream& operator<<(std::ostream& stream, const RegisterList& list) {
  stream << "{";
  for (int i = 0; i < list.count; ++i) stream << (i == 0 ? "%" : ", %") << list.name << i;
  return stream << "}";
}

// Writes the module of one variant. Operands lie in registers %a0.., %b0.., %c0.., %d0.., and the
// registers %address_a, .._b, .._c, .._e (metadata), .._d hold their addresses.
class ModuleWriter {
 public:
  ModuleWriter(const Variant& variant, mma::Chip chip)
      : variant_(variant), instruction_(*variant.instruction), chip_(chip) {}

  std::string Write() {
    WriteHead();
    WriteAddresses();
    if (instruction_.is_warpgroup()) {
      WriteWgmma();
    } else if (instruction_.family == mma::Family::kWmma) {
      WriteWmma();
    } else {
      WriteMma();
    }
    Line("ret;");
    text_ << "}\n";
    return text_.str();
  }

 private:
  template <typename... Parts>
  void Line(const Parts&... parts) {
    text_ << "  ";
    (text_ << ... << parts) << "\n";
  }

  ElementType TypeOf(Operand operand) const { return mma::TypeOf(instruction_, operand); }
  // A register of PTX holds one word, or two for f64.
  int RegisterBytes(Operand operand) const { return BitsOf(TypeOf(operand)) == 64 ? 8 : 4; }
  int RegisterCount(Operand operand) const {
    return mma::WordsPerLane(instruction_, operand) * 4 / RegisterBytes(operand);
  }
  const char* RegisterType(Operand operand) const {
    if (RegisterBytes(operand) == 8) return "f64";
    return TypeOf(operand) == ElementType::kF32 ? "f32" : "b32";
  }
  RegisterList Registers(char name, Operand operand) const {
    return {name, RegisterCount(operand)};
  }
  // The bytes of one case.
  int MatrixBytes(Operand operand) const {
    return mma::RowsOf(instruction_, operand) * mma::ColumnsOf(instruction_, operand) *
           BitsOf(TypeOf(operand)) / 8;
  }

  void WriteHead() {
    // The first version that knows all chips of the table except sm_103, which came later.
    text_ << ".version " << (chip_ == mma::Chip::kSm103 ? "8.8" : "8.7") << "\n";
    text_ << ".target " << TargetOf(chip_) << "\n.address_size 64\n\n";
    text_ << ".visible .entry " << kEntryName << "(\n";
    for (const char name : kParameters) {
      Line("  .param .u64 ", name, name == kParameters.back() ? ")" : ",");
    }
    text_ << "{\n";
    for (const char name : kParameters) Line(".reg .b64 %address_", name, ";");
    Line(".reg .b64 %offset;");
    Line(".reg .b32 %case, %lane, %thread, %metadata, %factors;");
    Declare('a', Operand::kA);
    if (!instruction_.is_warpgroup()) Declare('b', Operand::kB);
    Declare('c', Operand::kC);
    Declare('d', Operand::kD);
  }

  void Declare(char name, Operand operand) {
    Line(".reg .", RegisterType(operand), " %", name, "<", RegisterCount(operand), ">;");
  }

  // %thread counts threads through all cases.
  void WriteAddresses() {
    for (const char name : kParameters) {
      Line("ld.param.u64 %address_", name, ", [", name, "];");
      Line("cvta.to.global.u64 %address_", name, ", %address_", name, ";");
    }
    Line("mov.u32 %case, %ctaid.x;");
    Line("mov.u32 %lane, %tid.x;");
    Line("mad.lo.u32 %thread, %case, ", instruction_.lanes(), ", %lane;");
  }

  // Advances an operand's address to the case or thread of number `index`.
  void Advance(char name, const char* index, int bytes) {
    Line("mul.wide.u32 %offset, ", index, ", ", bytes, ";");
    Line("add.u64 %address_", name, ", %address_", name, ", %offset;");
  }

  void LoadRegisters(char name, Operand operand) {
    const int bytes = RegisterBytes(operand);
    Advance(name, "%thread", bytes * RegisterCount(operand));
    for (int i = 0; i < RegisterCount(operand); ++i) {
      Line("ld.global.", RegisterType(operand), " %", name, i, ", [%address_", name, "+", i * bytes,
           "];");
    }
  }

  void LoadMetadata() {
    Advance('e', "%thread", 4);
    Line("ld.global.b32 %metadata, [%address_e];");
  }

  void StoreRegisters(char name) {
    const int bytes = RegisterBytes(Operand::kD);
    Advance('d', "%thread", bytes * RegisterCount(Operand::kD));
    for (int i = 0; i < RegisterCount(Operand::kD); ++i) {
      Line("st.global.", RegisterType(Operand::kD), " [%address_d+", i * bytes, "], %", name, i,
           ";");
    }
  }

  void WriteMma() {
    LoadRegisters('a', Operand::kA);
    LoadRegisters('b', Operand::kB);
    LoadRegisters('c', Operand::kC);
    std::ostringstream modifiers;
    if (instruction_.is_sparse()) {
      LoadMetadata();
      modifiers << ", %metadata, " << variant_.selector;
    }
    if (instruction_.scales > 0) {
      // Files hold no factors: all of them are 1.
      const bool is_power = instruction_.scale == mma::ScaleType::kUe8m0;
      Line("mov.b32 %factors, ", is_power ? "0x7f7f7f7f" : "0x38383838", ";");
      modifiers << ", %factors, {0, 0}, %factors, {0, 0}";
    }
    WriteProduct(modifiers.str());
    StoreRegisters('d');
  }

  void WriteProduct(const std::string& modifiers) {
    Line(mma::PtxOf(instruction_).view(), " ", Registers('d', Operand::kD), ", ",
         Registers('a', Operand::kA), ", ", Registers('b', Operand::kB), ", ",
         Registers('c', Operand::kC), modifiers, ";");
  }

  void WriteWmma() {
    LoadMatrix('a', Operand::kA, instruction_.a_layout);
    LoadMatrix('b', Operand::kB, instruction_.b_layout);
    LoadMatrix('c', Operand::kC, mma::Layout::kRow);
    WriteProduct("");
    Advance('d', "%case", MatrixBytes(Operand::kD));
    Line("wmma.store.d.sync.aligned.row", Shape(), ".global.", NameOf(instruction_.d),
         " [%address_d], ", Registers('d', Operand::kD), ", ", instruction_.n, ";");
  }

  void LoadMatrix(char name, Operand operand, mma::Layout layout) {
    Advance(name, "%case", MatrixBytes(operand));
    const int stride = layout == mma::Layout::kRow ? mma::ColumnsOf(instruction_, operand)
                                                   : mma::RowsOf(instruction_, operand);
    Line("wmma.load.", name, ".sync.aligned.", mma::NameOf(layout), Shape(), ".global.",
         NameOf(TypeOf(operand)), " ", Registers(name, operand), ", [%address_", name, "], ",
         stride, ";");
  }

  std::string Shape() const {
    std::ostringstream shape;
    shape << ".m" << instruction_.m << "n" << instruction_.n << "k" << instruction_.k;
    return shape.str();
  }

  void WriteWgmma() {
    LoadRegisters('a', Operand::kA);
    LoadRegisters('c', Operand::kC);
    if (instruction_.is_sparse()) LoadMetadata();
    WriteTile();
    WriteDescriptor();
    Line(".reg .pred %adds_c;");
    Line("setp.eq.u32 %adds_c, 0, 0;");
    std::ostringstream modifiers;
    if (instruction_.is_sparse()) modifiers << ", %metadata, " << variant_.selector;
    modifiers << ", %adds_c";
    if (IsFloat(instruction_.a)) modifiers << ", 1, 1";    // Negates neither operand.
    if (BitsOf(instruction_.b) == 16) modifiers << ", 0";  // Does not transpose B.
    Line("wgmma.fence.sync.aligned;");
    Line(mma::PtxOf(instruction_).view(), " ", Registers('c', Operand::kC), ", ",
         Registers('a', Operand::kA), ", %descriptor", modifiers.str(), ";");
    Line("wgmma.commit_group.sync.aligned;");
    Line("wgmma.wait_group.sync.aligned 0;");
    StoreRegisters('c');
  }

  // The core matrices of B along k follow one another, then those of the next columns.
  int CoresAlongK() const { return instruction_.k * BitsOf(instruction_.b) / 8 / kCoreDepthBytes; }

  // Copies B into shared memory, K-major without swizzle, in pieces of 16 bytes.
  void WriteTile() {
    const int bytes = MatrixBytes(Operand::kB);
    Line(".shared .align 1024 .b8 tile[", bytes, "];");
    Line(".reg .pred %is_done;");
    Line(".reg .b32 %base, %chunk, %column, %place, %word<4>;");
    Advance('b', "%case", bytes);
    Line("mov.u32 %base, tile;");
    Line("mov.u32 %chunk, %lane;");
    Line("next_chunk:");
    Line("setp.ge.u32 %is_done, %chunk, ", bytes / kCoreDepthBytes, ";");
    Line("@%is_done bra tile_done;");
    Line("mul.wide.u32 %offset, %chunk, ", kCoreDepthBytes, ";");
    Line("add.u64 %offset, %address_b, %offset;");
    Line("ld.global.v4.b32 {%word0, %word1, %word2, %word3}, [%offset];");
    Line("div.u32 %column, %chunk, ", CoresAlongK(), ";");
    Line("rem.u32 %place, %chunk, ", CoresAlongK(), ";");
    Line("mad.lo.u32 %place, %place, ", kCoreBytes, ", %base;");
    WritePlaceOfColumn();
    Line("st.shared.v4.b32 [%place], {%word0, %word1, %word2, %word3};");
    Line("add.u32 %chunk, %chunk, ", instruction_.lanes(), ";");
    Line("bra next_chunk;");
    Line("tile_done:");
    Line("fence.proxy.async.shared::cta;");
    Line("bar.sync 0;");
  }

  // Adds the offset of the column to %place.
  void WritePlaceOfColumn() {
    Line(".reg .b32 %part;");
    Line("shr.u32 %part, %column, 3;");
    Line("mad.lo.u32 %place, %part, ", CoresAlongK() * kCoreBytes, ", %place;");
    Line("and.b32 %part, %column, 7;");
    Line("mad.lo.u32 %place, %part, ", kCoreDepthBytes, ", %place;");
  }

  // The address and the strides along k and along the columns, all in units of 16 bytes.
  void WriteDescriptor() {
    const uint64_t depth_step = kCoreBytes / 16;
    const uint64_t column_step = static_cast<uint64_t>(CoresAlongK()) * kCoreBytes / 16;
    Line(".reg .b64 %descriptor;");
    Line("and.b32 %base, %base, 0x3ffff;");
    Line("shr.u32 %base, %base, 4;");
    Line("cvt.u64.u32 %descriptor, %base;");
    Line("or.b64 %descriptor, %descriptor, ", depth_step << 16 | column_step << 32, ";");
  }

  static constexpr std::array<char, 5> kParameters = {'a', 'b', 'c', 'e', 'd'};

  const Variant& variant_;
  const Instruction& instruction_;
  const mma::Chip chip_;
  std::ostringstream text_;
};

}  // namespace

std::string TargetOf(mma::Chip chip) {
  std::string target(mma::NameOf(chip));
  if (mma::CapabilityOf(chip) >= 90) target += "a";
  return target;
}

std::string PtxModuleOf(const Variant& variant, mma::Chip chip) {
  return ModuleWriter(variant, chip).Write();
}

}  // namespace gemmd
