// SPDX-License-Identifier: Apache-2.0
//
// Where a product is computed once more, and what a device that gave a wrong answer is given.
#include <algorithm>
#include <set>
#include <utility>

#include "kernels/catalog.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/scheduling/answer_checker.h"
#include "server/system/log.h"

namespace gemmd {

bool AnswerChecker::CanRun(Place place, const Problem& problem) const {
  const Device& device = *place.served->device;
  if (!place.served->readiness().ok() || !device.CheckSize(problem).ok()) return false;
  if (!place.kernel->available(device.profile().target).ok()) return false;
  if (!place.kernel->supports(problem).ok()) return false;
  if (place.served->trust == nullptr) return true;
  const std::vector<const Kernel*> quarantined = place.served->trust->quarantined();
  return std::find(quarantined.begin(), quarantined.end(), place.kernel) == quarantined.end();
}

bool AnswerChecker::MayUse(const Product& product, const ServedDevice& served) {
  const Identity* const caller = product.arrival.caller.get();
  return caller == nullptr || caller->grant.MayUse(served.device->info().name);
}

// Where the same bits come from: an equal device, another kernel of the same instruction, or, where
// there is neither, the same kernel again.
AnswerChecker::Place AnswerChecker::EqualPlace(const Product& product) const {
  const DeviceInfo& own = product.served->device->info();
  const Kernel& kernel = product.kernel();
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    const bool is_equal = info.kind == own.kind && info.description == own.description &&
                          info.chip == own.chip && &served != product.served &&
                          MayUse(product, served);
    if (is_equal && CanRun({&served, &kernel}, product.job.problem)) return {&served, &kernel};
  }
  if (kernel.instruction != nullptr) {
    for (const Kernel& other : Catalog(own.kind)) {
      if (&other == &kernel || !ShareInstruction(other, kernel)) continue;
      if (CanRun({product.served, &other}, product.job.problem)) return {product.served, &other};
    }
  }
  return {product.served, &kernel};
}

AnswerChecker::Place AnswerChecker::PlaceForRetry(const Product& product) const {
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    if (!product.wanted_device.empty() && info.name != product.wanted_device) continue;
    if (!MayUse(product, served)) continue;
    if (!served.readiness().ok() || !served.device->CheckSize(product.job.problem).ok()) continue;
    const std::vector<const Kernel*> quarantined =
        served.trust == nullptr ? std::vector<const Kernel*>() : served.trust->quarantined();
    Constraints constraints = product.constraints;
    constraints.quarantined = quarantined;
    const Kernel* const kernel =
        FindBest(Catalog(info.kind), product.job.problem, constraints, served.device->profile());
    if (kernel != nullptr && NeedsOf(product.check, *kernel, product.job.problem).ok()) {
      return {&served, kernel};
    }
  }
  return {};
}

// One product of known answer for each engine of the device.
void AnswerChecker::RunCanaries(const ServedDevice& served) {
  std::set<std::string_view> engines;
  for (const Kernel& kernel : Catalog(served.device->info().kind)) {
    if (engines.count(kernel.engine) != 0) continue;
    absl::StatusOr<std::unique_ptr<CanaryProduct>> made = MakeCanary(kernel);
    if (!made.ok() || !CanRun({&served, &kernel}, (*made)->job.problem)) continue;
    engines.insert(kernel.engine);
    std::shared_ptr<CanaryProduct> canary = *std::move(made);
    auto submission = std::make_unique<Submission>();
    submission->device = served.device;
    submission->job = canary->job;
    submission->job.keeps_kernel = true;
    submission->predicted_ns = PredictedNs(kernel, canary->job.problem, served.device->profile());
    submission->caller = "canary";
    submission->done = [this, &served, &kernel, canary](std::unique_ptr<Submission> ended) {
      absl::Status status = ended->outcome.status;
      if (status.ok()) status = canary->Check(ended->outcome.d.bytes());
      EndCanary(served, kernel, status);
    };
    {
      MutexLock lock(&mutex_);
      ++canaries_;
    }
    scheduler_.Submit(std::move(submission));
  }
}

void AnswerChecker::EndCanary(const ServedDevice& served, const Kernel& kernel,
                              const absl::Status& status) {
  if (absl::IsDataLoss(status)) {
    served.trust->AddWrongAnswer(kernel);
    spdlog::error("event=canary_failed device={} kernel={} reason={}",
                  LogValue(served.device->info().name), kernel.name,
                  LogValue(std::string(status.message())));
  }
  MutexLock lock(&mutex_);
  --canaries_;
}

}  // namespace gemmd
