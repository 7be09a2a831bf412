// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/measure_cpu.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "kernels/bench/cpu_check.h"
#include "kernels/bench/cpu_libraries.h"
#include "kernels/bench/operands.h"
#include "kernels/bench/problem.h"
#include "kernels/bench/statistics.h"
#include "kernels/cpu/host.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSets = 3;  // Operands take turns, so that no call finds its own in cache.
constexpr double kSampleSeconds = 2e-4;  // A sample repeats short calls for as long.

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Memory that starts on a page.
class PageBytes {
 public:
  explicit PageBytes(int64_t bytes) {
    constexpr int64_t kPage = 4096;
    const int64_t rounded = std::max<int64_t>(1, (bytes + kPage - 1) / kPage) * kPage;
    data_.reset(static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(kPage), static_cast<size_t>(rounded))));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  explicit PageBytes(const std::vector<std::byte>& bytes)
      : PageBytes(static_cast<int64_t>(bytes.size())) {
    std::copy(bytes.begin(), bytes.end(), data());
  }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

// The matrices of one product.
struct Matrices {
  PageBytes a;
  PageBytes b;
  PageBytes d;
};

// One of those who take turns. call(set) multiplies once.
struct HostContender {
  std::string name;
  std::function<void(int set)> call;
  int calls_per_sample = 1;
  int next_set = 0;
  std::vector<double> seconds = {};

  double Sample() {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls_per_sample; ++i) call(next_set++ % kSets);
    return SecondsSince(start) / calls_per_sample;
  }

  // Also touches all memory and starts threads.
  void WarmUp() {
    for (int set = 0; set < kSets; ++set) call(set);
    while (Sample() * calls_per_sample < kSampleSeconds) calls_per_sample *= 2;
  }
};

void TakeTurns(std::vector<HostContender>& contenders, const CpuSettings& settings) {
  for (HostContender& contender : contenders) contender.WarmUp();
  const Clock::time_point start = Clock::now();
  for (int turn = 0; turn < settings.min_samples || SecondsSince(start) < settings.seconds;
       ++turn) {
    for (HostContender& contender : contenders) contender.seconds.push_back(contender.Sample());
  }
}

GemmArgs MakeArgs(const Problem& problem, const Target& target, const Matrices& matrices,
                  absl::Span<std::byte> workspace) {
  return {.problem = problem,
          .target = target,
          .a = matrices.a.data(),
          .b = matrices.b.data(),
          .c = nullptr,
          .bias = nullptr,
          .a_scale = {},
          .b_scale = {},
          .d = matrices.d.data(),
          .workspace = workspace};
}

absl::StatusOr<std::vector<Matrices>> MakeSets(const Problem& problem,
                                               int64_t workspace_bytes = 0) {
  RETURN_IF_ERROR(CheckMemory(problem, kSets, workspace_bytes));
  std::vector<Matrices> sets;
  for (int set = 0; set < kSets; ++set) {
    ASSIGN_OR_RETURN(const Operands operands, DrawOperands(problem, set));
    sets.push_back({PageBytes(operands.a), PageBytes(operands.b), PageBytes(BytesOf(problem.d))});
  }
  return sets;
}

// A library call with operands of its own, so that widening is not in its time.
struct HostOpponent {
  DirectCall call;
  std::vector<Matrices> sets;
};

absl::StatusOr<std::vector<HostOpponent>> MakeOpponents(const Kernel& kernel,
                                                        const Problem& problem,
                                                        const Shape& shape) {
  std::vector<HostOpponent> opponents;
  const bool a_is_unsigned = kernel.recipe.a_compute == ElementType::kU8;
  for (DirectCall& call : DirectCalls(kernel.engine, shape, problem.b.order, a_is_unsigned)) {
    Problem direct;
    ASSIGN_OR_RETURN(direct.a, TightLayout("a", call.a, problem.a.order, shape.m, shape.k));
    ASSIGN_OR_RETURN(direct.b, TightLayout("b", call.b, problem.b.order, shape.k, shape.n));
    ASSIGN_OR_RETURN(direct.d, TightLayout("d", call.d, problem.d.order, shape.m, shape.n));
    direct.m = shape.m;
    direct.n = shape.n;
    direct.k = shape.k;
    ASSIGN_OR_RETURN(std::vector<Matrices> sets, MakeSets(direct));
    opponents.push_back({std::move(call), std::move(sets)});
  }
  return opponents;
}

}  // namespace

absl::StatusOr<CpuMeasurement> MeasureOnCpu(const Kernel& kernel, const Shape& shape,
                                            const CpuSettings& settings) {
  const Orders orders = {.a = Order::kRowMajor, .b = settings.b_order, .d = Order::kRowMajor};
  ASSIGN_OR_RETURN(const Problem problem, MakeProblem(kernel, shape, orders));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  ASSIGN_OR_RETURN(const std::vector<Matrices> sets, MakeSets(problem, workspace_bytes));
  const PageBytes workspace(workspace_bytes);
  const auto launch = [&](int set) {
    const GemmArgs args = MakeArgs(problem, HostTarget(), sets[static_cast<size_t>(set)],
                                   {workspace.data(), static_cast<size_t>(workspace_bytes)});
    return kernel.launch(args);
  };
  RETURN_IF_ERROR(launch(0));

  std::vector<HostContender> contenders;
  contenders.push_back({std::string(kernel.name), [&](int set) { launch(set).IgnoreError(); }});
  ASSIGN_OR_RETURN(const std::vector<HostOpponent> opponents,
                   MakeOpponents(kernel, problem, shape));
  for (const HostOpponent& opponent : opponents) {
    contenders.push_back({opponent.call.name, [&opponent](int set) {
                            const Matrices& matrices = opponent.sets[static_cast<size_t>(set)];
                            opponent.call.run(matrices.a.data(), matrices.b.data(),
                                              matrices.d.data());
                          }});
  }
  TakeTurns(contenders, settings);

  const HostContender& row = contenders[0];
  const ProductBytes first = {sets[0].a.data(), sets[0].b.data(), sets[0].d.data()};
  CpuMeasurement result = {.kernel = row.name,
                           .shape = shape,
                           .seconds = Median(row.seconds),
                           .library = std::nullopt,
                           .samples = static_cast<int>(row.seconds.size()),
                           .verdict = CheckElements(kernel, problem, first)};
  for (size_t i = 1; i < contenders.size(); ++i) {
    LibraryTime library = LibraryTimeOf(contenders[i].name, contenders[i].seconds, row.seconds);
    if (result.library && library.seconds >= result.library->seconds) continue;
    result.library = std::move(library);
  }
  return result;
}

std::vector<Column> CpuColumns() {
  return {{"kernel", -32},    {"m x n x k", -16}, {"Gop/s", 10},  {"library", 10},
          {"called as", -18}, {"ratio", 6},       {"samples", 8}, {"check", -1}};
}

Entry EntryOf(const CpuMeasurement& m) {
  const double rate = m.shape.operations() / m.seconds;
  const auto rate_of = [&m](const LibraryTime& library) {
    return m.shape.operations() / library.seconds;
  };
  return {.kernel = m.kernel,
          .shape = m.shape,
          .fields = {{"kernel", m.kernel},
                     {"m", m.shape.m},
                     {"n", m.shape.n},
                     {"k", m.shape.k},
                     {"kernel_seconds", m.seconds},
                     {"library_call", ValueOf(m.library, &LibraryTime::how)},
                     {"library_seconds", ValueOf(m.library, &LibraryTime::seconds)},
                     {"kernel_gops", rate / 1e9},
                     {"library_gops",
                      ValueOf(m.library, [&](const auto& l) { return rate_of(l) / 1e9; })},
                     {"ratio", ValueOf(m.library, &LibraryTime::ratio)},
                     {"samples", m.samples},
                     {"check", m.verdict}},
          .cells = {m.kernel, NameOf(m.shape), GigaText(rate),
                    TextOf(m.library, [&](const auto& l) { return GigaText(rate_of(l)); }),
                    TextOf(m.library, &LibraryTime::how), TextOf(m.library, RatioText),
                    Concat(m.samples), m.verdict},
          .is_right = m.verdict == "ok"};
}

}  // namespace gemmd::bench
