// SPDX-License-Identifier: Apache-2.0
//
// vector_check: plays every recording of a directory through the simulator, prints a line for each
// variant and a closing line. Exit codes: 0 all agree; 1 some do not, or are unknown; 2 usage.
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/mma/chip.h"
#include "tests/testing/command_line.h"
#include "tests/vectors/replay.h"

namespace gemmd {
namespace {

struct Options {
  std::string directory;
  std::string chip = "sm_90";
};

std::vector<std::string> FindRecordings(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == ".bin") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

int Run(const Options& options, mma::Chip chip) {
  const std::vector<std::string> paths = FindRecordings(options.directory);
  if (paths.empty()) {
    std::fprintf(stderr, "vector_check: no .bin file in %s\n", options.directory.c_str());
    return 1;
  }
  const auto count = static_cast<int64_t>(paths.size());
  std::vector<ReplayResult> results(paths.size());
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    results[at] = ReplayFile(paths[at], chip);
  }
  int passed = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    const ReplayResult& result = results[i];
    const std::string name = std::filesystem::path(paths[i]).stem().string();
    const bool is_passed = result.error.empty() && result.mismatches == 0;
    passed += is_passed ? 1 : 0;
    std::printf("%s %lld %lld", name.c_str(), static_cast<long long>(result.cases),
                static_cast<long long>(result.mismatches));
    if (!result.error.empty()) std::printf(" FAILED: %s", result.error.c_str());
    if (!result.first.empty()) std::printf(" FAILED: %s", result.first.c_str());
    std::printf("\n");
  }
  const int failed = static_cast<int>(paths.size()) - passed;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Plays recordings of matrix instructions (NAME.bin, formats in tests/vectors/README.md) "
      "through the simulator, bit for bit. Prints NAME, cases and mismatches for each.",
      "vector_check");
  app.add_option("DIR", options.directory, "Directory with the .bin files, searched to any depth")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--chip", options.chip, "The chip that was recorded")->capture_default_str();
  if (const std::optional<int> code = ReadArguments(app, argc, argv)) return *code;
  const std::optional<mma::Chip> chip = mma::ChipFromName(options.chip);
  if (!chip) {
    std::fprintf(stderr, "vector_check: --chip: got %s, want sm_70 .. sm_120\n",
                 options.chip.c_str());
    return 2;
  }
  return Run(options, *chip);
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
