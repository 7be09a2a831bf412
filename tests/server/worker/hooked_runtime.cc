// SPDX-License-Identifier: Apache-2.0
#include "tests/server/worker/hooked_runtime.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <random>

#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/matrix/text.h"
#include "tests/server/worker/rights.h"

namespace gemmd {
namespace {

std::string ScriptPath() {
  const char* script = getenv("GEMMD_WORKER_SCRIPT");  // NOLINT(concurrency-mt-unsafe): no threads.
  return script == nullptr ? "" : script;
}

// An address without memory in any GPU or process, aligned as D must be.
std::byte* Nowhere() { return reinterpret_cast<std::byte*>(uintptr_t{256}); }

void FlipBit(const GemmArgs& args) {
  const int bits = BitsOf(args.problem.d.type);
  const uint64_t flipped =
      LoadBits(args.problem.d.type, args.d, 0) ^ uint64_t { 1 } << (bits > 2 ? bits - 2 : 0);
  StoreBits(args.problem.d.type, args.d, 0, flipped);
}

class Script {
 public:
  Script(GpuRuntime& inner, absl::Status (*run_endless_loop)())
      : inner_(inner), run_endless_loop_(run_endless_loop) {}

  absl::Status Act(const GpuCall& call, const HookedRuntime::PassOn& pass_on) {
    if (is_lost_) return absl::InternalError(Concat(call.function, ": scripted: lost before"));
    Read();
    const std::string function(call.function);
    const auto found = actions_.find({function, ++calls_[function]});
    const std::string action = found == actions_.end() ? "" : found->second;
    if (action.empty()) return pass_on();
    if (action == "skip") return absl::OkStatus();
    if (action == "endless_loop") return run_endless_loop_();
    if (action == "illegal_address") {
      GemmArgs args_to_nowhere = *call.args;
      args_to_nowhere.d = Nowhere();
      return inner_.Launch(call.lane, *call.kernel, args_to_nowhere);
    }
    if (action == "flip") {
      RETURN_IF_ERROR(pass_on());
      FlipBit(*call.args);
      return absl::OkStatus();
    }
    while (action == "hang") pause();
    if (action == "stop") {
      raise(SIGSTOP);
      return pass_on();
    }
    if (action == "abort") abort();
    if (action == "exit") _exit(1);
    if (action == "rights") return absl::InternalError(DescribeRights());
    const std::string message = Concat(function, ": scripted: ", action);
    if (action == "memory") return absl::ResourceExhaustedError(message);
    is_lost_ = action == "lost";
    return absl::InternalError(message);
  }

 private:
  void Read() {
    if (access(path_.c_str(), R_OK) != 0) return;
    std::ifstream file(path_);
    actions_.clear();
    calls_.clear();
    std::string function;
    std::string action;
    for (int call = 0; file >> function >> call >> action;) actions_[{function, call}] = action;
    unlink(path_.c_str());
  }

  GpuRuntime& inner_;
  absl::Status (*const run_endless_loop_)();
  const std::string path_ = ScriptPath();
  std::map<std::pair<std::string, int>, std::string> actions_;
  std::map<std::string, int> calls_;
  bool is_lost_ = false;
};

class RandomOrder {
 public:
  RandomOrder(GpuRuntime& inner, uint64_t seed) : inner_(inner), random_(seed) {}

  absl::Status Do(const GpuCall& call, const HookedRuntime::PassOn& pass_on) {
    MomentState& state = moments_[call.moment];
    std::deque<Step>& steps = steps_[static_cast<size_t>(call.lane)];
    if (call.function == "IsReached") {
      DoSome();
      return state.reached >= state.marked ? pass_on() : inner_.Wait();
    }
    if (call.function == "Wait") {
      while (!IsEmpty()) DoSome();
      return pass_on();
    }
    if (call.function == "Launch") {
      steps.push_back(LaunchOf(call));
    } else if (call.function == "Mark") {
      steps.push_back([&state, pass_on, times = ++state.marked] {
        state.reached = times;
        pass_on().IgnoreError();
        return true;
      });
    } else if (call.function == "Follow") {
      steps.push_back([&state, times = state.marked] { return state.reached >= times; });
    } else if (call.function.substr(0, 4) == "Copy" || call.function == "Clear" ||
               call.function == "Compress" || call.function == "Gather") {
      steps.push_back([pass_on] {
        pass_on().IgnoreError();
        return true;
      });
    } else {
      return pass_on();
    }
    return absl::OkStatus();
  }

 private:
  // Returns false if it must wait for another lane.
  using Step = std::function<bool()>;
  struct MomentState {
    uint64_t marked = 0;  // The number of marks.
    uint64_t reached = 0;
  };

  // The arguments point to a problem that is gone when the step is done.
  Step LaunchOf(const GpuCall& call) {
    return [this, problem = std::make_shared<Problem>(call.args->problem), args = *call.args,
            kernel = call.kernel, lane = call.lane] {
      const GemmArgs kept = {.problem = *problem,
                             .target = args.target,
                             .a = args.a,
                             .b = args.b,
                             .c = args.c,
                             .bias = args.bias,
                             .a_scale = args.a_scale,
                             .b_scale = args.b_scale,
                             .d = args.d,
                             .workspace = args.workspace,
                             .a_factors = args.a_factors,
                             .b_factors = args.b_factors};
      inner_.Launch(lane, *kernel, kept).IgnoreError();
      return true;
    };
  }

  bool IsEmpty() const {
    return std::all_of(steps_.begin(), steps_.end(),
                       [](const std::deque<Step>& steps) { return steps.empty(); });
  }

  // Does some steps of a random lane. A lane may not proceed for long.
  void DoSome() {
    constexpr uint64_t kMaxSteps = 4;
    std::deque<Step>& steps = steps_[random_() % steps_.size()];
    for (uint64_t left = random_() % kMaxSteps; left > 0 && !steps.empty(); --left) {
      if (!steps.front()()) return;
      steps.pop_front();
    }
  }

  GpuRuntime& inner_;
  std::mt19937_64 random_;
  std::array<std::deque<Step>, kAllLanes.size()> steps_;
  std::map<Moment, MomentState> moments_;
};

}  // namespace

absl::Status HookedRuntime::Compress(const CompressView& view, BadGroup* bad) {
  return hook_({.function = "Compress"}, [=, this] { return inner_.Compress(view, bad); });
}

HookedRuntime::Hook InRandomOrder(GpuRuntime& inner, uint64_t seed) {
  const auto order = std::make_shared<RandomOrder>(inner, seed);
  return [order](const GpuCall& call, const HookedRuntime::PassOn& pass_on) {
    return order->Do(call, pass_on);
  };
}

HookedRuntime::Hook AsTheScriptSays(GpuRuntime& inner, absl::Status (*run_endless_loop)()) {
  const auto script = std::make_shared<Script>(inner, run_endless_loop);
  return [script](const GpuCall& call, const HookedRuntime::PassOn& pass_on) {
    return script->Act(call, pass_on);
  };
}

std::string ScriptFolder() {
  const std::string path = ScriptPath();
  return path.substr(0, path.rfind('/'));
}

}  // namespace gemmd
