// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.h"

#include "kernels/device_profile.h"
#include "kernels/status_macros.h"

namespace gemmd {
namespace {

// Elements that are widened before the product or finished after it.
double ConvertedElements(const Kernel& kernel, const Problem& problem) {
  double total = 0;
  if (problem.has_product()) {
    if (kernel.recipe.a_compute != kernel.a) total += ElementsOf(problem.a, problem.batch);
    if (kernel.recipe.b_compute != kernel.b) total += ElementsOf(problem.b, problem.batch);
  }
  const bool is_counted_in_floats =
      kernel.recipe.accumulation == ElementType::kS32 && IsFloat(kernel.recipe.a_compute);
  const bool is_stored_as_it_is =
      problem.is_plain() && !is_counted_in_floats && problem.d.type == kernel.recipe.accumulation;
  if (!is_stored_as_it_is) total += ElementsOf(problem.d, problem.batch);
  return total;
}

}  // namespace

absl::Status AbortedLaunch() { return absl::CancelledError("aborted while it ran"); }

double EngineSeconds(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
                     double rate) {
  const double operations = problem.has_product() ? static_cast<double>(Operations(problem)) : 0;
  return operations / rate +
         ConvertedElements(kernel, problem) / profile.converted_elements_per_second;
}

absl::StatusOr<Problem> SampleCube(const Kernel& kernel, const Target& target) {
  const int64_t extent = target.kind == DeviceKind::kCpu ? 384 : 128;
  const ElementType sum = kernel.recipe.accumulation;
  Problem problem;
  problem.m = problem.n = problem.k = extent;
  ASSIGN_OR_RETURN(problem.a, TightLayout("a", kernel.a, Order::kRowMajor, extent, extent));
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", kernel.b, Order::kRowMajor, extent, extent));
  ASSIGN_OR_RETURN(problem.d, TightLayout("d", sum, Order::kRowMajor, extent, extent));
  problem.accumulation = sum;
  if (kernel.instruction != nullptr && kernel.instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  return problem;
}

absl::StatusOr<DerivedOperand> DeriveNothing(const Kernel&, const Problem&, mma::Operand) {
  return DerivedOperand();
}

}  // namespace gemmd
