// SPDX-License-Identifier: Apache-2.0
#include "server/product/prediction.h"

#include <algorithm>
#include <cmath>

#include "absl/hash/hash.h"
#include "kernels/catalog.h"

namespace gemmd {

namespace {

// Products differ in these most.
size_t PlaceOf(const KernelChoices::Question& question) {
  const Problem& problem = question.problem;
  return absl::HashOf(problem.m, problem.n, problem.k, problem.batch, problem.a.type,
                      problem.a.order, problem.b.type, problem.b.order, problem.d.type,
                      question.kernel) %
         KernelChoices::kPlaces;
}

}  // namespace

const Kernel* KernelChoices::Find(const Question& question,
                                  absl::FunctionRef<const Kernel*()> choose) {
  const size_t position = PlaceOf(question);
  {
    MutexLock lock(&mutex_);
    const Place& place = places_[position];
    if (place.choice != nullptr && place.question == question) return place.choice;
  }
  const Kernel* const choice = choose();
  if (choice == nullptr) return nullptr;
  MutexLock lock(&mutex_);
  places_[position] = {question, choice};
  return choice;
}

namespace {

constexpr double kLargestLogarithm = 4;  // That of kMost.
constexpr double kLargestStep = 2;       // How wrong one product may seem: four times.
constexpr double kPart = 0.25;           // One product moves the factor so far on its way.

// Times shorter than this are those of clocks and of handing over.
constexpr double kShortestNs = 1000;

}  // namespace

static_assert(PredictionCorrection::kMost == 16);

PredictionCorrection::PredictionCorrection(absl::Span<const ServedDevice> devices) {
  devices_.reserve(devices.size());
  for (const ServedDevice& served : devices) {
    devices_.emplace_back(Catalog(served.device->info().kind).size());
  }
}

const std::atomic<float>* PredictionCorrection::Find(size_t device, const Kernel& kernel,
                                                     const Problem& problem) const {
  if (device >= devices_.size() || kernel.position >= devices_[device].size()) return nullptr;
  return &devices_[device][kernel.position][static_cast<size_t>(ShapeClassOf(problem))];
}

std::atomic<float>* PredictionCorrection::Find(size_t device, const Kernel& kernel,
                                               const Problem& problem) {
  const PredictionCorrection& self = *this;
  return const_cast<std::atomic<float>*>(self.Find(device, kernel, problem));
}

double PredictionCorrection::Factor(size_t device, const Kernel& kernel,
                                    const Problem& problem) const {
  const std::atomic<float>* const logarithm = Find(device, kernel, problem);
  if (logarithm == nullptr) return 1;
  return std::exp2(static_cast<double>(logarithm->load(std::memory_order_relaxed)));
}

int64_t PredictionCorrection::Correct(size_t device, const Kernel& kernel, const Problem& problem,
                                      int64_t predicted_ns) const {
  constexpr double kLongestNs = 0x1p62;
  const double corrected = static_cast<double>(predicted_ns) * Factor(device, kernel, problem);
  return corrected < kLongestNs ? static_cast<int64_t>(corrected)
                                : static_cast<int64_t>(kLongestNs);
}

void PredictionCorrection::Observe(size_t device, const Kernel& kernel, const Problem& problem,
                                   int64_t predicted_ns, int64_t taken_ns) {
  std::atomic<float>* const logarithm = Find(device, kernel, problem);
  if (logarithm == nullptr) return;
  const double predicted = std::max(static_cast<double>(predicted_ns), kShortestNs);
  const double taken = std::max(static_cast<double>(taken_ns), kShortestNs);
  const double old = logarithm->load(std::memory_order_relaxed);
  const double error = std::log2(taken / predicted) - old;
  const double step = kPart * std::clamp(error, -kLargestStep, kLargestStep);
  const double corrected = std::clamp(old + step, -kLargestLogarithm, kLargestLogarithm);
  logarithm->store(static_cast<float>(corrected), std::memory_order_relaxed);
}

}  // namespace gemmd
