// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/kernel_choices.h"

#include "absl/hash/hash.h"

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

}  // namespace gemmd
