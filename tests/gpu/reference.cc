// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/reference.h"

#include "kernels/default_recipe.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {

absl::Status Simulate(const Kernel& kernel, mma::Chip chip, const Product& product,
                      std::vector<std::byte>& output) {
  const Kernel* const simulated = SimulatedKernel(kernel);
  if (simulated == nullptr) {
    return absl::InternalError(Concat(kernel.name, ": the simulator has no such kernel"));
  }
  ASSIGN_OR_RETURN(const int64_t bytes, simulated->workspace_bytes(product.problem));
  std::vector<std::byte> workspace(static_cast<size_t>(bytes));
  const Target target = {.kind = DeviceKind::kSim, .chip = chip};
  return simulated->launch(HostArgs(product, target, output, workspace));
}

absl::StatusOr<std::vector<std::vector<std::byte>>> ExpectedOutputs(
    const Kernel& kernel, mma::Chip chip, absl::Span<const Product> products) {
  std::vector<std::vector<std::byte>> outputs;
  for (const Product& product : products) {
    std::vector<std::byte>& output = outputs.emplace_back(PoisonedOutput(product.problem));
    if (outputs.size() == 1) {
      RETURN_IF_ERROR(Simulate(kernel, chip, product, output));
    } else if (product.problem.has_output()) {
      CopyElements(products[0].problem.d, outputs[0].data() + kGuardBytes, product.problem.d,
                   output.data() + kGuardBytes, product.problem.batch);
    }
  }
  return outputs;
}

}  // namespace gemmd
