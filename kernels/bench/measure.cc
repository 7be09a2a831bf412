// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/measure.h"

#include <chrono>
#include <functional>
#include <vector>

#include "kernels/bench/operands.h"
#include "kernels/bench/statistics.h"
#include "kernels/cpu/host.h"
#include "kernels/status_macros.h"

namespace gemmd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSets = 3;  // Operands take turns, so that no call finds its own in cache.
constexpr double kSampleSeconds = 2e-4;  // A sample repeats short calls for as long.

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One of those who take turns. call(set) multiplies once.
struct Contender {
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

void TakeTurns(std::vector<Contender>& contenders, const Settings& settings) {
  for (Contender& contender : contenders) contender.WarmUp();
  const Clock::time_point start = Clock::now();
  for (int turn = 0; turn < settings.min_samples || SecondsSince(start) < settings.seconds;
       ++turn) {
    for (Contender& contender : contenders) contender.seconds.push_back(contender.Sample());
  }
}

GemmArgs MakeArgs(const Problem& problem, const Target& target, const Operands& operands,
                  absl::Span<std::byte> workspace) {
  return {.problem = problem,
          .target = target,
          .a = operands.a.data(),
          .b = operands.b.data(),
          .c = nullptr,
          .bias = nullptr,
          .a_scale = {},
          .b_scale = {},
          .d = operands.d.data(),
          .workspace = workspace};
}

std::vector<Operands> MakeSets(const Problem& problem) {
  std::vector<Operands> sets;
  sets.reserve(kSets);
  for (int set = 0; set < kSets; ++set) sets.emplace_back(problem.a, problem.b, problem.d, set);
  return sets;
}

// A library call with operands of its own, so that widening is not in its time.
struct Opponent {
  DirectCall call;
  std::vector<Operands> sets;
};

absl::StatusOr<std::vector<Opponent>> MakeOpponents(const Kernel& kernel, const Problem& problem,
                                                    const Shape& shape) {
  std::vector<Opponent> opponents;
  const bool a_is_unsigned = kernel.recipe.a_compute == ElementType::kU8;
  for (DirectCall& call : DirectCalls(kernel.engine, shape, problem.b.order, a_is_unsigned)) {
    Problem direct;
    ASSIGN_OR_RETURN(direct.a, TightLayout("a", call.a, problem.a.order, shape.m, shape.k));
    ASSIGN_OR_RETURN(direct.b, TightLayout("b", call.b, problem.b.order, shape.k, shape.n));
    ASSIGN_OR_RETURN(direct.d, TightLayout("d", call.d, problem.d.order, shape.m, shape.n));
    std::vector<Operands> sets = MakeSets(direct);
    opponents.push_back({std::move(call), std::move(sets)});
  }
  return opponents;
}

}  // namespace

absl::StatusOr<Measurement> Measure(const Kernel& kernel, const Shape& shape,
                                    const Settings& settings) {
  ASSIGN_OR_RETURN(const Problem problem, MakeProblem(kernel, shape, settings.b_order));
  RETURN_IF_ERROR(kernel.supports(problem));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  AlignedBytes workspace(workspace_bytes);
  const std::vector<Operands> sets = MakeSets(problem);
  const auto launch = [&](int set) {
    const GemmArgs args = MakeArgs(problem, HostTarget(), sets[static_cast<size_t>(set)],
                                   {workspace.data(), static_cast<size_t>(workspace_bytes)});
    return kernel.launch(args);
  };
  RETURN_IF_ERROR(launch(0));

  std::vector<Contender> contenders;
  contenders.push_back({std::string(kernel.name), [&](int set) { launch(set).IgnoreError(); }});
  ASSIGN_OR_RETURN(const std::vector<Opponent> opponents, MakeOpponents(kernel, problem, shape));
  for (const Opponent& opponent : opponents) {
    contenders.push_back({opponent.call.name, [&opponent](int set) {
                            const Operands& operands = opponent.sets[static_cast<size_t>(set)];
                            opponent.call.run(operands.a.data(), operands.b.data(),
                                              operands.d.data());
                          }});
  }
  TakeTurns(contenders, settings);

  const Contender& row = contenders[0];
  Measurement result = {.kernel = row.name,
                        .shape = shape,
                        .kernel_seconds = Median(row.seconds),
                        .library_call = "",
                        .library_seconds = 0,
                        .ratio = 0,
                        .samples = static_cast<int>(row.seconds.size()),
                        .verdict = Verify(kernel, problem, sets[0])};
  for (size_t i = 1; i < contenders.size(); ++i) {
    const Contender& library = contenders[i];
    const double seconds = Median(library.seconds);
    if (!result.library_call.empty() && seconds >= result.library_seconds) continue;
    result.library_call = library.name;
    result.library_seconds = seconds;
    result.ratio = MedianRatio(library.seconds, row.seconds);
  }
  return result;
}

}  // namespace gemmd::bench
