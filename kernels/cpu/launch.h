// SPDX-License-Identifier: Apache-2.0
//
// What all CPU rows do around their engines: expand a sparse A, widen operands, turn any order and
// leading dimension into the engine's row-major call, loop over the batch, apply the epilogue.
#pragma once

#include "kernels/cpu/engine.h"
#include "kernels/kernel.h"

namespace gemmd {

// A row as data: an engine and the types of its operands.
struct CpuRow {
  const Engine* engine;
  ElementType a;
  ElementType b;
  ElementType a_compute;  // The type that the engine gets.
  ElementType b_compute;
  ElementType accumulation;  // s32 for integers, even where the engine adds in f64.
};

extern const KernelFamily kCpuFamily;

}  // namespace gemmd
