// SPDX-License-Identifier: Apache-2.0
//
// The CPU libraries called directly, as their manuals say, for comparison with the catalogue's
// rows. Nothing here uses code of kernels/cpu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/bench/shape.h"
#include "kernels/element.h"
#include "kernels/problem.h"

namespace gemmd::bench {

// One way to call a library for D = A B on row-major A and D and a B of either order.
struct DirectCall {
  std::string name;  // "dnnl_sgemm"
  ElementType a;     // What the call takes.
  ElementType b;
  ElementType d;
  std::function<void(const std::byte* a, const std::byte* b, std::byte* d)> run;
};

// The calls that do the work of an engine of the catalogue, of which the fastest counts.
// `a_is_unsigned` says whether 8-bit integers of A are.
std::vector<DirectCall> DirectCalls(std::string_view engine, const Shape& shape, Order b_order,
                                    bool a_is_unsigned);

}  // namespace gemmd::bench
