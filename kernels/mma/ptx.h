// SPDX-License-Identifier: Apache-2.0
//
// The mnemonic of an instruction in PTX, with every qualifier in its place. Sparse warp-level
// instructions have ordered metadata, the form that no chip reorders first.
//
// Source: PTX ISA 9.0, sections 9.7.14.4.5, 9.7.14.5.14, 9.7.14.6.3 and 9.7.15.5.2.
#pragma once

#include "kernels/mma/element_type.h"
#include "kernels/mma/instruction.h"

namespace gemmd::mma {

using PtxMnemonic = StaticText<128>;

namespace ptx {

constexpr void AppendShape(PtxMnemonic& text, const Instruction& instruction) {
  text.Append(".m");
  text.Append(int{instruction.m});
  text.Append("n");
  text.Append(int{instruction.n});
  text.Append("k");
  text.Append(int{instruction.k});
}

constexpr void AppendLayouts(PtxMnemonic& text, const Instruction& instruction) {
  for (const Layout layout : {instruction.a_layout, instruction.b_layout}) {
    text.Append(".");
    text.Append(NameOf(layout));
  }
}

constexpr void AppendType(PtxMnemonic& text, ElementType type) {
  text.Append(".");
  text.Append(NameOf(type));
}

constexpr PtxMnemonic Mma(const Instruction& instruction) {
  PtxMnemonic text(instruction.is_sparse() ? "mma.sp::ordered_metadata.sync.aligned"
                                           : "mma.sync.aligned");
  AppendShape(text, instruction);
  AppendLayouts(text, instruction);
  text.Append(SuffixOf(instruction.kind));
  if (instruction.scales > 0) {
    text.Append(".block_scale.scale_vec::");
    text.Append(int{instruction.scales});
    text.Append("X");
  }
  text.Append(SuffixOf(instruction.rounding));
  if (instruction.saturates) text.Append(".satfinite");
  AppendType(text, instruction.d);
  AppendType(text, instruction.a);
  AppendType(text, instruction.b);
  AppendType(text, instruction.c);
  text.Append(SuffixOf(instruction.bit_count));
  if (instruction.scales > 0) {
    text.Append(".");
    text.Append(NameOf(instruction.scale));
  }
  return text;
}

// wmma does not name operand types of f16, and .satfinite comes last.
constexpr PtxMnemonic Wmma(const Instruction& instruction) {
  PtxMnemonic text("wmma.mma");
  text.Append(SuffixOf(instruction.bit_count));
  text.Append(".sync.aligned");
  AppendLayouts(text, instruction);
  AppendShape(text, instruction);
  text.Append(SuffixOf(instruction.rounding));
  AppendType(text, instruction.d);
  if (instruction.a != ElementType::kF16) {
    AppendType(text, instruction.a);
    AppendType(text, instruction.b);
  }
  AppendType(text, instruction.c);
  if (instruction.saturates) text.Append(".satfinite");
  return text;
}

// wgmma has no operand C apart from D.
constexpr PtxMnemonic Wgmma(const Instruction& instruction) {
  PtxMnemonic text(instruction.is_sparse() ? "wgmma.mma_async.sp.sync.aligned"
                                           : "wgmma.mma_async.sync.aligned");
  AppendShape(text, instruction);
  if (instruction.saturates) text.Append(".satfinite");
  AppendType(text, instruction.d);
  AppendType(text, instruction.a);
  AppendType(text, instruction.b);
  text.Append(SuffixOf(instruction.bit_count));
  return text;
}

}  // namespace ptx

// "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16": A or B of a wmma, from shared memory.
constexpr PtxMnemonic WmmaLoadPtxOf(const Instruction& instruction, bool is_a) {
  PtxMnemonic text(is_a ? "wmma.load.a.sync.aligned." : "wmma.load.b.sync.aligned.");
  text.Append(NameOf(is_a ? instruction.a_layout : instruction.b_layout));
  ptx::AppendShape(text, instruction);
  text.Append(".shared");
  ptx::AppendType(text, is_a ? instruction.a : instruction.b);
  return text;
}

// "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32".
constexpr PtxMnemonic PtxOf(const Instruction& instruction) {
  switch (instruction.family) {
    case Family::kMma:
    case Family::kMmaSparse: return ptx::Mma(instruction);
    case Family::kWmma: return ptx::Wmma(instruction);
    case Family::kWgmma:
    case Family::kWgmmaSparse: return ptx::Wgmma(instruction);
  }
  return {};
}

}  // namespace gemmd::mma
