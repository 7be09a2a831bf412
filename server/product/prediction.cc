// SPDX-License-Identifier: Apache-2.0
#include "server/product/prediction.h"

#include <algorithm>
#include <cmath>

#include "absl/hash/hash.h"
#include "kernels/kernel.h"

namespace gemmd {

namespace {

// Hashes the members in which products differ most.
size_t PlaceOf(const KernelChoices::Question& question) {
  const Problem& problem = question.problem;
  return absl::HashOf(problem.m, problem.n, problem.k, problem.batch, problem.a.type,
                      problem.a.order, problem.b.type, problem.b.order, problem.d.type,
                      question.kernel) %
         KernelChoices::kPlaces;
}

}  // namespace

KernelChoices::Choice KernelChoices::Make(const Kernel* kernel, const Problem& problem,
                                          const DeviceProfile& profile) {
  if (kernel == nullptr) return {};
  return {.kernel = kernel, .predicted = Predict(*kernel, problem, profile)};
}

KernelChoices::Choice KernelChoices::Find(const Question& question,
                                          absl::FunctionRef<Choice()> choose) {
  const size_t position = PlaceOf(question);
  {
    MutexLock lock(&mutex_);
    const Place& place = places_[position];
    if (place.choice.kernel != nullptr && place.question == question) return place.choice;
  }
  const Choice choice = choose();
  if (choice.kernel == nullptr) return choice;
  MutexLock lock(&mutex_);
  places_[position] = {question, choice};
  return choice;
}

void Correction::Observe(int64_t predicted_ns, int64_t taken_ns, bool is_whole) {
  constexpr double kMaxWrong = 4;       // The maximum ratio of one observation.
  constexpr double kPart = 0.25;        // The part of the way that one product moves the factor.
  constexpr double kShortestNs = 1000;  // Shorter times are dominated by clocks and overhead.
  const double predicted = std::max(static_cast<double>(predicted_ns), kShortestNs);
  const double taken = std::max(static_cast<double>(taken_ns), kShortestNs);
  const double old = factor();
  const double wrong = std::clamp(taken / predicted / old, 1 / kMaxWrong, kMaxWrong);
  if (!is_whole && wrong <= 1) return;
  factor_.store(std::clamp(old * std::pow(wrong, kPart), 1 / kMax, kMax),
                std::memory_order_relaxed);
}

int64_t ExpectedNs(int64_t predicted_ns, const Correction* correction) {
  if (correction == nullptr) return predicted_ns;
  constexpr double kLongestNs = 0x1p62;
  const double expected_ns = static_cast<double>(predicted_ns) * correction->factor();
  return static_cast<int64_t>(std::min(expected_ns, kLongestNs));
}

Corrections::Corrections(const Device& device) : rows_(Catalog(device.info().kind).size()) {}

Correction* Corrections::Find(const Kernel& kernel, const Problem& problem) {
  if (kernel.position >= rows_.size()) return nullptr;
  return &rows_[kernel.position][static_cast<size_t>(ShapeClassOf(problem))];
}

}  // namespace gemmd
