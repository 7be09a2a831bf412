// SPDX-License-Identifier: Apache-2.0
//
// gpu_check: whether every kernel of the catalogue gives on this machine's GPU what the simulator
// gives. Exit codes: 0 all passed, 1 not, 2 usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "kernels/bench/report.h"
#include "tests/gpu/checker.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/gpu/report.h"
#include "tests/gpu/unnamed.h"
#include "tests/testing/command_line.h"

namespace gemmd {
namespace {

struct Options {
  CheckOptions check;
  std::string json;
  int64_t unnamed = 0;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "gpu_check: %s\n", std::string(status.message()).c_str());
  return 1;
}

int RunUnnamed(const Options& options, const CudaGpu& gpu) {
  const absl::StatusOr<std::unique_ptr<KernelRunner>> runner = MakeCudaRunner(Placement::kTogether);
  if (!runner.ok()) return Fail(runner.status());
  bool is_right = true;
  for (const uint64_t seed : options.check.seeds) {
    const absl::StatusOr<UnnamedResult> result =
        CheckUnnamed(**runner, gpu.chip, options.unnamed, seed);
    if (!result.ok()) return Fail(result.status());
    std::printf(
        "seed %llu: %lld products without a name, %lld kernels, %lld elements, %lld wrong\n",
        static_cast<unsigned long long>(seed), static_cast<long long>(result->products),
        static_cast<long long>(result->kernels), static_cast<long long>(result->elements),
        static_cast<long long>(result->mismatches));
    if (!result->first.empty()) std::printf("%s\n", result->first.c_str());
    is_right &= result->mismatches == 0;
  }
  std::puts(is_right ? "PASSED" : "FAILED");
  return is_right ? 0 : 1;
}

int Run(Options& options) {
  absl::StatusOr<CudaGpu> gpu = FindCudaGpu();
  if (!gpu.ok()) return Fail(gpu.status());
  if (options.unnamed > 0) return RunUnnamed(options, *gpu);
  gpu->facts.commit = GEMMD_COMMIT;
  options.check.chip = gpu->chip;
  const Placement placement = options.check.is_quick ? Placement::kApart : Placement::kTogether;
  const absl::StatusOr<CheckResult> result =
      CheckRows(options.check, [=] { return MakeCudaRunner(placement); });
  if (!result.ok()) return Fail(result.status());
  if (!options.json.empty()) {
    const absl::Status status = bench::WriteOutputFile(options.json, JsonOf(gpu->facts, *result));
    if (!status.ok()) return Fail(status);
  }
  std::fputs(TextOf(gpu->facts, *result).c_str(), stdout);
  if (result->is_aborted) {
    std::fflush(nullptr);
    std::_Exit(1);  // A normal exit would wait for the kernel.
  }
  return result->passed() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  options.check.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  CLI::App app(
      "Runs every kernel of the catalogue that this machine's first GPU has, and compares with the "
      "simulator\nbit for bit.",
      "gpu_check");
  app.add_option("--filter", options.check.filter, "Kernels, a pattern of the shell")
      ->capture_default_str();
  app.add_option("--seed", options.check.seeds, "Of the operands; one round for each")
      ->capture_default_str();
  app.add_option("--case", options.check.only_case, "Only this case of each kernel and seed");
  app.add_flag("--quick", options.check.is_quick,
               "A few small products of each kernel, each operand in an allocation of just its "
               "size: under\ncompute-sanitizer");
  app.add_option("--unnamed", options.unnamed,
                 "In place of every kernel: so many random products for each seed that name none, "
                 "by what the GPU and what\nits simulator choose")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.check.threads, "That simulate, each with a stream")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seconds", options.check.seconds, "After which no case begins; 0: no limit")
      ->capture_default_str();
  app.add_option("--json", options.json, "Where a report goes");
  if (const std::optional<int> code = ReadArguments(app, argc, argv)) return *code;
  return Run(options);
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
