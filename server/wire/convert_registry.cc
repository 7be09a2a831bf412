// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_registry.h"

#include <string>

#include "kernels/catalog.h"
#include "kernels/status_macros.h"
#include "server/wire/convert_operand.h"
#include "server/wire/name_pattern.h"

namespace gemmd {

v1::Kernel ToWire(const Kernel& kernel) {
  v1::Kernel wire;
  wire.set_name(std::string(kernel.name));
  wire.set_device_kind(std::string(NameOf(kernel.device_kind)));
  wire.set_provider(std::string(kernel.provider));
  wire.set_a_type(ToWire(kernel.a));
  wire.set_b_type(ToWire(kernel.b));
  wire.set_compute_type_a(ToWire(kernel.recipe.a_compute));
  wire.set_compute_type_b(ToWire(kernel.recipe.b_compute));
  wire.set_accumulation_type(ToWire(kernel.recipe.accumulation));
  wire.set_description(std::string(kernel.how));
  wire.set_exact(kernel.recipe.exact);
  wire.set_deterministic(kernel.deterministic);
  wire.set_batch_invariant(kernel.batch_invariant);
  wire.set_flushes_subnormals(kernel.recipe.flushes_subnormals);
  wire.set_promotion_k(kernel.recipe.promotion_k);
  return wire;
}

v1::KernelAvailability AvailabilityOn(const ServedDevice& served, const Kernel& kernel) {
  const absl::Status available = kernel.available(served.device->profile().target);
  v1::KernelAvailability wire;
  wire.set_device(served.device->info().name);
  wire.set_available(available.ok());
  wire.set_reason(std::string(available.message()));
  return wire;
}

Listing ListingOfKernels(const std::vector<ServedDevice>& devices) {
  std::vector<ListedItem> items;
  for (const Kernel& kernel : Catalog()) {
    v1::Kernel wire = ToWire(kernel);
    for (const ServedDevice& served : devices) {
      *wire.add_availability() = AvailabilityOn(served, kernel);
    }
    items.push_back({wire.name(), wire.SerializeAsString()});
  }
  return Listing(v1::ListKernelsResponse::kKernelsFieldNumber, items);
}

absl::StatusOr<grpc::ByteBuffer> ListKernels(const Listing& kernels,
                                             const v1::ListKernelsRequest& request) {
  ASSIGN_OR_RETURN(const NamePattern pattern,
                   NamePattern::Parse("name_pattern", request.name_pattern()));
  if (request.name_pattern().empty()) return kernels.All();
  return kernels.Answer([&](size_t, std::string_view name) { return pattern.Matches(name); });
}

v1::Device ToWire(const ServedDevice& served, const DeviceLoad& load) {
  const DeviceInfo& info = served.device->info();
  v1::Device wire;
  wire.set_name(info.name);
  wire.set_kind(std::string(NameOf(info.kind)));
  wire.set_description(info.description);
  wire.set_arithmetic(info.arithmetic);
  wire.set_threads(info.threads);
  const absl::Status readiness = served.readiness();
  wire.set_ready(readiness.ok());
  wire.set_not_ready_reason(std::string(readiness.message()));
  wire.set_memory_bytes(info.memory_bytes);
  wire.set_chip(info.chip);
  wire.set_multiprocessors(info.multiprocessors);
  wire.set_memory_limit_bytes(info.memory_limit_bytes);
  wire.set_clock_khz(info.clock_khz);
  wire.set_memory_clock_khz(info.memory_clock_khz);
  wire.set_cuda_driver_version(info.driver);
  wire.set_cuda_runtime_version(info.runtime);
  wire.set_queued_requests(load.queued_requests);
  wire.set_queued_bytes(load.queued_bytes);
  wire.set_completed_requests(load.completed_requests);
  for (const EngineRate& rate : served.device->profile().rates) {
    v1::Rate* wire_rate = wire.add_rates();
    wire_rate->set_engine(rate.engine);
    wire_rate->set_operations_per_second(rate.operations_per_second);
  }
  return wire;
}

absl::Status FillExplanation(const Problem& problem, const Selection& selection,
                             v1::ExplainResponse& response) {
  for (const Candidate& candidate : selection.candidates) {
    v1::Candidate* wire = response.add_candidates();
    wire->set_kernel(std::string(candidate.kernel->name));
    wire->set_predicted_ns(candidate.predicted_ns);
    wire->set_reason(candidate.reason);
  }
  for (const Refusal& refusal : selection.refusals) {
    v1::Refusal* wire = response.add_refusals();
    wire->set_kernel(std::string(refusal.kernel->name));
    wire->set_reason(refusal.reason);
  }
  response.set_operations(Operations(problem));
  response.set_bytes_read(BytesRead(problem));
  response.set_bytes_written(BytesWritten(problem));
  if (selection.candidates.empty()) return absl::OkStatus();
  response.set_recipe(selection.recipe);
  ASSIGN_OR_RETURN(const int64_t bytes,
                   selection.candidates.front().kernel->workspace_bytes(problem));
  response.set_workspace_bytes(bytes);
  return absl::OkStatus();
}

}  // namespace gemmd
