// SPDX-License-Identifier: Apache-2.0
//
// vector_record: executes the matrix instructions of a chip on a GPU and writes operands and
// results, a file for each variant, as vector_check reads them. Exit codes: 0 all recorded; 1 some
// were not, or there is no such GPU; 2 usage.
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench/record/cuda_driver.h"
#include "kernels/bench/record/operand_words.h"
#include "kernels/bench/record/ptx_module.h"
#include "kernels/bench/record/recording.h"
#include "kernels/bench/record/variants.h"
#include "kernels/mma/chip.h"

namespace gemmd {
namespace {

enum class Source : uint8_t { kGpu, kSimulator, kPtxOnly };

struct Options {
  std::string directory;
  std::string chip;
  std::string families = "both";
  VariantSelection selection;
  size_t cases = 0;
  uint64_t seed = std::random_device()();
  bool simulates = false;
  bool writes_ptx = false;

  Source source() const {
    if (writes_ptx) return Source::kPtxOnly;
    return simulates ? Source::kSimulator : Source::kGpu;
  }
};

struct Refusal {
  std::string variant;
  std::string reason;
};

std::vector<OperandFamily> FamiliesOf(const std::string& set) {
  std::vector<OperandFamily> families;
  for (int i = 0; i < kOrdinaryFamilies && set != "directed"; ++i) {
    families.push_back({FamilySet::kOrdinary, i});
  }
  for (int i = 0; i < kDirectedFamilies && set != "ordinary"; ++i) {
    families.push_back({FamilySet::kDirected, i});
  }
  return families;
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  std::array<char, 16> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &utc);
  return text.data();
}

class Recorder {
 public:
  Recorder(const Options& options, mma::Chip chip, Gpu& gpu)
      : options_(options), chip_(chip), gpu_(gpu), families_(FamiliesOf(options.families)) {
    cases_ = options.cases > 0 ? options.cases : families_.size();
  }

  int Record() {
    const std::vector<Variant> variants = VariantsOf(chip_, options_.selection);
    if (variants.empty()) {
      std::fprintf(stderr, "vector_record: no variant of %s is named %s\n",
                   std::string(mma::NameOf(chip_)).c_str(), options_.selection.filter.c_str());
      return 1;
    }
    for (const Variant& variant : variants) {
      const std::string error = RecordOne(variant);
      if (error.empty()) continue;
      refusals_.push_back({NameOf(variant), error});
      std::fprintf(stderr, "%s: %s\n", NameOf(variant).c_str(), error.c_str());
    }
    const size_t recorded = variants.size() - refusals_.size();
    std::printf("%zu recorded, %zu refused, %zu cases each, seed %llu\n", recorded,
                refusals_.size(), cases_, static_cast<unsigned long long>(options_.seed));
    if (options_.source() != Source::kPtxOnly && !WriteSummary(recorded)) {
      std::fprintf(stderr, "vector_record: recording.json cannot be written\n");
      return 1;
    }
    return refusals_.empty() ? 0 : 1;
  }

 private:
  std::string PathOf(const Variant& variant, const char* extension) const {
    return (std::filesystem::path(options_.directory) / (NameOf(variant) + extension)).string();
  }

  // Empty, or the reason why the file was not written.
  std::string RecordOne(const Variant& variant) {
    const std::string ptx = PtxModuleOf(variant, chip_);
    if (options_.source() == Source::kPtxOnly) {
      std::ofstream file(PathOf(variant, ".ptx"));
      file << ptx << std::flush;
      return file.good() ? "" : "file cannot be written";
    }
    Recording recording = MakeInputs(variant, families_, cases_, options_.seed);
    if (options_.source() == Source::kSimulator) {
      recording.d = Simulate(variant, chip_, recording);
    } else {
      recording.d.resize(cases_ * WordsOf(*variant.instruction, mma::Operand::kD));
      const std::string error =
          gpu_.Run({.ptx = ptx,
                    .entry = kEntryName,
                    .blocks = static_cast<unsigned>(cases_),
                    .threads = static_cast<unsigned>(variant.instruction->lanes()),
                    .inputs = {&recording.a, &recording.b, &recording.c, &recording.metadata},
                    .result = recording.d});
      if (!error.empty()) return error;
    }
    return WriteFile(PathOf(variant, ".bin"), recording) ? "" : "file cannot be written";
  }

  bool WriteSummary(size_t recorded) const {
    nlohmann::ordered_json summary = {
        {"chip", mma::NameOf(chip_)},
        {"target", TargetOf(chip_)},
        {"gpu", options_.simulates ? "simulator" : gpu_.facts().name},
        {"driver", gpu_.facts().driver},
        {"cuda", gpu_.facts().cuda_version},
        {"date", Today()},
        {"seed", options_.seed},
        {"families", options_.families},
        {"variants", recorded},
        {"cases", cases_},
    };
    summary["refused"] = nlohmann::ordered_json::array();
    for (const Refusal& refusal : refusals_) {
      summary["refused"].push_back({{"variant", refusal.variant}, {"reason", refusal.reason}});
    }
    std::ofstream file(std::filesystem::path(options_.directory) / "recording.json");
    file << summary.dump(2) << std::endl;
    return file.good();
  }

  const Options& options_;
  const mma::Chip chip_;
  Gpu& gpu_;
  const std::vector<OperandFamily> families_;
  size_t cases_;
  std::vector<Refusal> refusals_;
};

int OpenGpu(const Options& options, mma::Chip& chip, Gpu& gpu) {
  if (const std::string error = gpu.Open(); !error.empty()) {
    std::fprintf(stderr, "vector_record: %s\n", error.c_str());
    return 1;
  }
  const GpuFacts& facts = gpu.facts();
  std::printf("%s, sm_%d, driver %s, CUDA %d.%d\n", facts.name.c_str(), facts.capability,
              facts.driver.c_str(), facts.cuda_version / 1000, facts.cuda_version % 1000 / 10);
  const std::string name = "sm_" + std::to_string(facts.capability);
  const std::optional<mma::Chip> found = mma::ChipFromName(name);
  if (!found || (!options.chip.empty() && options.chip != name)) {
    std::fprintf(stderr, "vector_record: the GPU is %s, want %s\n", name.c_str(),
                 options.chip.empty() ? "a chip of the table" : options.chip.c_str());
    return 1;
  }
  chip = *found;
  return 0;
}

int Run(const Options& options) {
  const std::optional<mma::Chip> named =
      mma::ChipFromName(options.chip.empty() ? "sm_90" : options.chip);
  if (!named) {
    std::fprintf(stderr, "vector_record: --chip: got %s, want sm_70 .. sm_120\n",
                 options.chip.c_str());
    return 2;
  }
  mma::Chip chip = *named;
  Gpu gpu;
  if (options.source() == Source::kGpu && OpenGpu(options, chip, gpu) != 0) return 1;
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    std::fprintf(stderr, "vector_record: %s: %s\n", options.directory.c_str(),
                 error.message().c_str());
    return 1;
  }
  return Recorder(options, chip, gpu).Record();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Executes every matrix instruction of the table on the first GPU and writes operands and "
      "results\n(NAME.bin, formats in tests/vectors/README.md, and recording.json).",
      "vector_record");
  app.add_option("DIR", options.directory, "Where the files go")->required();
  app.add_option("--chip", options.chip,
                 "The chip, sm_70 .. sm_120 [that of the GPU; without one sm_90]");
  app.add_option("--cases", options.cases, "Cases of each variant [one of each family]");
  app.add_option("--seed", options.seed, "Of the operands [another one every time]");
  app.add_option("--filter", options.selection.filter, "Variants, a pattern of the shell")
      ->capture_default_str();
  app.add_option("--families", options.families, "Families of operands")
      ->check(CLI::IsMember({"ordinary", "directed", "both"}))
      ->capture_default_str();
  app.add_flag("--all-widths", options.selection.has_all_widths,
               "wgmma with every n, not only 8, 32 and 256");
  app.add_flag("--dry-run", options.simulates, "Takes the results from the simulator, not a GPU");
  app.add_flag("--ptx", options.writes_ptx, "Writes the PTX modules (NAME.ptx), runs nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Run(options);
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
