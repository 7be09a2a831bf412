// SPDX-License-Identifier: Apache-2.0
//
// Epilogues drawn at random: scalars, C, bias, scales and activation.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "tests/gpu/product.h"

namespace gemmd {

struct CaseSpec;

// The parts that products of one case share.
struct Epilogue {
  double alpha = 1;
  double beta = 0;
  MatrixLayout c_layout;  // Row major, without gaps.
  std::vector<std::byte> c;
  BiasAxis bias_axis = BiasAxis::kNone;
  ElementType bias_type = ElementType::kF32;
  std::vector<std::byte> bias;
  ScaleKind a_scale_kind = ScaleKind::kNone;
  ScaleKind b_scale_kind = ScaleKind::kNone;
  std::vector<float> a_scale;
  std::vector<float> b_scale;
  Activation activation = Activation::kNone;
};

Epilogue DrawEpilogue(const Kernel& kernel, const CaseSpec& spec, RandomSource& random);

// C gets an order and gaps of its own.
void AddEpilogue(const Epilogue& epilogue, Product& product, RandomSource& random);

// ", alpha 0.5, beta -2, C s8, bias f16 by rows, ..."; empty where there is none.
std::string DescribeEpilogue(const Problem& problem);

}  // namespace gemmd
