// SPDX-License-Identifier: Apache-2.0
//
// Where a product runs.
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/catalog.h"
#include "kernels/peer_text.h"
#include "kernels/select.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/scheduling/product_runner.h"

namespace gemmd {
namespace {

absl::Status NoSuchDevice(std::string_view name, const std::vector<ServedDevice>& devices) {
  const auto append_name = [](std::string* names, const ServedDevice& served) {
    *names += served.device->info().name;
  };
  return absl::NotFoundError(
      GotWant("device", Shown(name), Concat("one of ", absl::StrJoin(devices, ", ", append_name))));
}

}  // namespace

// The best kernel for a product that the device may be given.
const Kernel* ProductRunner::FindTrusted(const ServedDevice& served, const Product& product) const {
  const std::vector<const Kernel*> quarantined = served.quarantined();
  Constraints constraints = product.constraints;
  constraints.quarantined = quarantined;
  const Problem& problem = product.job.problem;
  const auto choose = [&] {
    return FindBest(Catalog(served.device->info().kind), problem, constraints,
                    served.device->profile());
  };
  if (!quarantined.empty()) return choose();
  return choices_[IndexOf(served)].Find({.problem = problem,
                                         .kernel = constraints.kernel,
                                         .deterministic = constraints.deterministic,
                                         .batch_invariant = constraints.batch_invariant},
                                        choose);
}

absl::StatusOr<ProductRunner::Placement> ProductRunner::FindPlace(const Product& product) const {
  const Kernel* const wanted = product.constraints.kernel;
  const auto is_of_kind = [&](const ServedDevice& served) {
    return wanted == nullptr || served.device->info().kind == wanted->device_kind;
  };
  Placement place;
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    if (!product.wanted_device.empty() && info.name != product.wanted_device) continue;
    const Kernel* const kernel = FindTrusted(served, product);
    // A device of the wanted kernel's kind says best why the kernel does not run the product.
    const bool says_best =
        place.served == nullptr || (is_of_kind(served) && !is_of_kind(*place.served));
    if (kernel != nullptr || says_best) place = {&served, kernel};
    if (kernel != nullptr) break;
  }
  if (place.served == nullptr) return NoSuchDevice(product.wanted_device, devices_);
  if (product.wanted_device.empty() && product.tensors != nullptr)
    place = NearTensors(product, place);
  RETURN_IF_ERROR(place.served->readiness());
  return place;
}

// Bringing a tensor to a GPU takes longer than most products with it.
ProductRunner::Placement ProductRunner::NearTensors(const Product& product,
                                                    const Placement& first) const {
  const DeviceInfo& wanted = first.served->device->info();
  if (wanted.kind != DeviceKind::kCuda || first.kernel == nullptr) return first;
  Placement nearest = first;
  int64_t most_bytes = product.tensors->BytesOn(wanted.name);
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    const bool is_equal = info.kind == wanted.kind && info.description == wanted.description;
    if (!is_equal || !served.readiness().ok()) continue;
    const int64_t bytes = product.tensors->BytesOn(info.name);
    if (bytes <= most_bytes) continue;
    const Kernel* const kernel = FindTrusted(served, product);
    if (kernel == nullptr) continue;
    most_bytes = bytes;
    nearest = {&served, kernel};
  }
  return nearest;
}

// Chooses device and kernel and completes the job with the sizes that follow from them.
absl::Status ProductRunner::Place(Product& product) const {
  Job& job = product.job;
  ASSIGN_OR_RETURN(const Placement place, FindPlace(product));
  product.served = place.served;
  product.device = place.served->device;
  job.kernel = place.kernel;
  // Nor may what runs as one with others take a kernel that is quarantined.
  job.keeps_kernel =
      product.constraints.kernel != nullptr || !product.served->quarantined().empty();
  const DeviceProfile& profile = product.device->profile();
  if (job.kernel == nullptr) {
    const std::vector<const Kernel*> quarantined = product.served->quarantined();
    Constraints constraints = product.constraints;
    constraints.quarantined = quarantined;
    return Choose(Catalog(profile.target.kind), job.problem, constraints, profile).status();
  }
  RETURN_IF_ERROR(product.device->CheckSize(job.problem));
  job.d_bytes = BytesWritten(job.problem);
  const bool is_sent = product.tensors == nullptr || !product.tensors->takes_d();
  if (is_sent && job.d_bytes > max_message_bytes_ - kAnswerOverheadBytes) {
    return absl::ResourceExhaustedError(Concat("d: the result takes ", job.d_bytes,
                                               " bytes, a message holds at most ",
                                               max_message_bytes_ - kAnswerOverheadBytes));
  }
  ASSIGN_OR_RETURN(job.workspace_bytes, job.kernel->workspace_bytes(job.problem));
  product.predicted_ns =
      PredictedNs(*job.kernel, job.problem, profile) + PredictedCopyNs(job.problem, profile);
  product.expected_ns = ExpectedNs(*product.served, *job.kernel, job.problem, product.predicted_ns);
  return absl::OkStatus();
}

}  // namespace gemmd
