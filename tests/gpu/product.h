// SPDX-License-Identifier: Apache-2.0
//
// Operands of a product to check, and the place of its result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/testing/product.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// How lines follow each other: without gaps, each at a multiple of 16 bytes, or with gaps that put
// most of them at odd addresses.
enum class Spacing { kTight, kAligned, kOdd };

MatrixLayout SpacedLayout(ElementType type, Order order, int64_t rows, int64_t columns,
                          Spacing spacing);

// Copies the elements of `batch` matrices from one layout to another of the same shape and type.
// Sets bits after the last element of a packed line to 0.
void CopyElements(const MatrixLayout& from, const std::byte* source, const MatrixLayout& to,
                  std::byte* target, int64_t batch);

// Random bytes for all matrices of a layout, gaps included.
std::vector<std::byte> RandomMatrices(const MatrixLayout& layout, int64_t batch,
                                      RandomSource& random);

// A pattern in place of D and in the kGuardBytes before and after it. After the launch, everything
// but the elements of D must still be the pattern.
std::vector<std::byte> PoisonedOutput(const Problem& problem);

// The arguments of a launch on this processor; `workspace` must have at least as many bytes as the
// kernel needs.
GemmArgs HostArgs(const Product& product, const Target& target, std::vector<std::byte>& output,
                  std::vector<std::byte>& workspace);

}  // namespace gemmd
