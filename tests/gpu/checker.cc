// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/checker.h"

#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "kernels/cpu/host.h"
#include "kernels/cuda/rows.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/comparison.h"
#include "tests/gpu/reference.h"

namespace gemmd {
namespace {

using Clock = std::chrono::steady_clock;

// One case of one row with one seed.
struct Task {
  size_t row;
  uint64_t seed;
  size_t case_index;
  CaseSpec spec;
};

// FNV-1a: the same on every machine.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Types of A without a portable form are refused.
bool IsSupported(const Kernel& kernel, const CaseSpec& spec) {
  RandomSource random(0);
  const std::vector<Product> products = MakeProducts(kernel, spec, true, random);
  return kernel.supports(products[0].problem).ok();
}

class Checker {
 public:
  Checker(const CheckOptions& options, const MakeRunner& make_runner)
      : options_(options), make_runner_(make_runner), start_(Clock::now()) {
    result_.options = options;
  }

  absl::StatusOr<CheckResult> Run() {
    FindRows();
    if (result_.rows.empty()) {
      return absl::NotFoundError(GotWant("filter", options_.filter, "names of kernels"));
    }
    MakeTasks();
    std::vector<std::thread> others;
    for (int i = 1; i < options_.threads; ++i) others.emplace_back([this] { Work(); });
    Work();
    for (std::thread& other : others) other.join();
    RETURN_IF_ERROR(refusal_);
    result_.cases_left = tasks_.size() - std::min(tasks_.size(), done_.load());
    result_.seconds = SecondsSinceStart();
    FindInstructions();
    return std::move(result_);
  }

 private:
  double SecondsSinceStart() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  void FindRows() {
    const Target target = {.kind = DeviceKind::kCuda, .chip = options_.chip};
    for (const Kernel& kernel : CudaKernels()) {
      const std::string name(kernel.name);
      if (fnmatch(options_.filter.c_str(), name.c_str(), 0) != 0) continue;
      if (!kernel.available(target).ok()) continue;
      if (!IsSupported(kernel, CasesOf(kernel, 0, true)[0])) continue;
      RowResult& row = result_.rows.emplace_back();
      row.kernel = &kernel;
    }
  }

  // Seed by seed, so that every row has run once when the time is up.
  void MakeTasks() {
    std::vector<std::set<std::tuple<int64_t, int64_t, int64_t>>> shapes(result_.rows.size());
    for (size_t round = 0; round < options_.seeds.size(); ++round) {
      for (size_t row = 0; row < result_.rows.size(); ++row) {
        const std::vector<CaseSpec> cases =
            CasesOf(*result_.rows[row].kernel, round, options_.is_quick);
        for (size_t i = 0; i < cases.size(); ++i) {
          if (options_.only_case && *options_.only_case != i) continue;
          tasks_.push_back({row, options_.seeds[round], i, cases[i]});
          shapes[row].insert({cases[i].m, cases[i].n, cases[i].k});
        }
      }
    }
    for (size_t row = 0; row < shapes.size(); ++row) {
      result_.rows[row].shapes = static_cast<int64_t>(shapes[row].size());
    }
  }

  void Work() {
    const OneThread one_thread;
    absl::StatusOr<std::unique_ptr<KernelRunner>> runner = make_runner_();
    if (!runner.ok()) {
      const std::lock_guard lock(mutex_);
      refusal_ = runner.status();
      next_ = tasks_.size();
      return;
    }
    for (size_t i = next_++; i < tasks_.size(); i = next_++) {
      if (options_.seconds > 0 && SecondsSinceStart() > static_cast<double>(options_.seconds)) {
        return;
      }
      CheckCase(tasks_[i], **runner);
      ++done_;
    }
    // Memory of a GPU that no longer runs anything cannot be freed: freeing would wait for its
    // kernels.
    const std::lock_guard lock(mutex_);
    static auto* const abandoned = new std::vector<std::unique_ptr<KernelRunner>>();
    if (result_.is_aborted) abandoned->push_back(*std::move(runner));
  }

  void CheckCase(const Task& task, KernelRunner& runner) {
    const Kernel& kernel = *result_.rows[task.row].kernel;
    if (!runner.HasCode(kernel)) {
      const std::lock_guard lock(mutex_);
      result_.rows[task.row].has_code = false;
      return;
    }
    RandomSource random(HashOf(Concat(kernel.name, " ", task.seed, " ", task.case_index)));
    const std::vector<Product> products =
        MakeProducts(kernel, task.spec, options_.is_quick, random);
    std::vector<std::vector<std::byte>> outputs;
    for (const Product& product : products) outputs.push_back(PoisonedOutput(product.problem));
    absl::Status status = Supports(kernel, products);
    if (status.ok()) status = runner.Run(kernel, products, absl::MakeSpan(outputs));
    const absl::StatusOr<std::vector<std::vector<std::byte>>> expected =
        status.ok() ? ExpectedOutputs(kernel, options_.chip, products) : status;
    if (!expected.ok()) {
      AddError(task, products[0], expected.status());
      return;
    }
    std::vector<Comparison> comparisons;
    for (size_t i = 0; i < products.size(); ++i) {
      comparisons.push_back(Compare(products[i].problem, outputs[i], (*expected)[i]));
    }
    Add(task, products, comparisons);
  }

  static absl::Status Supports(const Kernel& kernel, const std::vector<Product>& products) {
    for (const Product& product : products) {
      RETURN_IF_ERROR(Validate(product.problem));
      RETURN_IF_ERROR(kernel.supports(product.problem));
    }
    return absl::OkStatus();
  }

  void AddError(const Task& task, const Product& product, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    RowResult& row = result_.rows[task.row];
    ++row.cases;
    ++row.errors;
    Keep(row, task, product, status.ToString());
    if (!absl::IsAborted(status)) return;
    result_.is_aborted = true;
    next_ = tasks_.size();
  }

  void Add(const Task& task, const std::vector<Product>& products,
           const std::vector<Comparison>& comparisons) {
    const std::lock_guard lock(mutex_);
    RowResult& row = result_.rows[task.row];
    ++row.cases;
    for (size_t i = 0; i < products.size(); ++i) {
      const Comparison& comparison = comparisons[i];
      ++row.products;
      row.elements += comparison.elements;
      row.mismatches += comparison.mismatches;
      if (!comparison.first) continue;
      const std::string where = Describe(*comparison.first, products[i].problem.d.type);
      Keep(row, task, products[i],
           Concat(comparison.mismatches, " of ", comparison.elements, ", first ", where));
    }
  }

  // Keeps the case with the smallest number, whichever thread comes first.
  static void Keep(RowResult& row, const Task& task, const Product& product,
                   const std::string& what) {
    if (row.first &&
        std::tie(row.first->seed, row.first->case_index) <= std::tie(task.seed, task.case_index)) {
      return;
    }
    row.first = Failure{Describe(task.spec, product.problem), what, task.seed, task.case_index};
  }

  void FindInstructions() {
    for (const mma::Instruction& instruction : mma::kInstructions) {
      if (instruction.is_warpgroup() ||
          mma::SupportOn(instruction, options_.chip) == mma::Support::kUnavailable) {
        continue;
      }
      result_.instructions.push_back(&instruction);
      const bool is_covered =
          std::any_of(result_.rows.begin(), result_.rows.end(), [&](const RowResult& row) {
            return *row.kernel->instruction == instruction && row.passed();
          });
      if (!is_covered) result_.not_covered.push_back(&instruction);
    }
  }

  const CheckOptions& options_;
  const MakeRunner& make_runner_;
  const Clock::time_point start_;
  std::vector<Task> tasks_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
  std::mutex mutex_;
  CheckResult result_;    // Guarded by mutex_ while threads work, except for the kernels of the
                          // rows.
  absl::Status refusal_;  // Guarded by mutex_.
};

}  // namespace

bool CheckResult::passed() const {
  if (cases_left > 0) return false;
  if (options.filter == "*" && !not_covered.empty()) return false;
  return std::all_of(rows.begin(), rows.end(), [](const RowResult& row) { return row.passed(); });
}

absl::StatusOr<CheckResult> CheckRows(const CheckOptions& options, const MakeRunner& make_runner) {
  return Checker(options, make_runner).Run();
}

}  // namespace gemmd
