// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/options.h"

#include <fnmatch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <string_view>
#include <thread>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/option/option.h"
#include "kernels/option/resources.h"

namespace gemmd::bench {
namespace {

constexpr char kDescription[] =
    "Times rows of the kernel catalogue beside the libraries, on the same layout, in the same run\n"
    "and in turns. Data are normal variates (integers: all values), operands alternate, times are\n"
    "medians after a warm-up, and results are checked.\n\n"
    "For a CPU row, a thousand elements of the result are compared with a reference. For a GPU "
    "row,\n"
    "every element at the crossings of 64 random rows and columns, or all of a small D, must "
    "equal\n"
    "the simulator's bit for bit, in memory poisoned before, and again after the timing.";

constexpr char kFooter[] =
    "The ratio is the row's speed over the library's: 1 is as fast. For a row that widens its\n"
    "operands (.via_...), the library gets widened operands.\n\n"
    "On a GPU: T/s is 1e12 operations per second (2 m n k; a sparse A, marked *, counts as dense)\n"
    "of the whole launch, including packing of operands and metadata; 'unpacked' is the kernel\n"
    "without packing, if something is packed; 'ceiling' the share of the instruction's measured\n"
    "peak rate; 'spread' the width of the middle half of the samples over the median. Times\n"
    "are from CUDA events around graphs of launches; operands rotate through more than twice the "
    "L2\n"
    "cache. cuBLASLt is the best of up to 16 heuristics, each timed, with 64 MiB of workspace and\n"
    "the true alignments; cuSPARSELt its own search; both are loaded at run time.\n"
    "'alone' and 'library' are T/s of --alone, each with the picojoules of an operation.\n"
    "'host us' is the host time of a launch, the median of --host-launches.\n\n"
    "Shapes: N is a cube, MxNxK any product, 64*N and 64*MxNxK a batch of 64 (on a GPU, A\n"
    "dense), and 'suite' stands for 512, 1024, 2048, 4096, 8192, 16x8192x8192, 64x8192x8192,\n"
    "8192x8192x512, 512x512x32768, 4095x4097x4093.\n\n"
    "Examples:\n"
    "  gemmbench --filter 'openblas.f64*' --shapes 2048\n"
    "  gemmbench --filter '*.f32.f32,*.s8.s8' --shapes 64,512x512x4096 --threads 1\n"
    "  gemmbench --list --device cuda:0 --filter 'mma.sp.*'\n"
    "  gemmbench --chip sm_90 --threads 1 --path avx2\n"
    "  gemmbench --device cuda:0 --filter 'mma.*bf16*' --shapes 4096,8192x8192x512,suite\n"
    "  gemmbench --device cuda:0 --shapes suite --seconds 0.5 --save h200.json\n"
    "  gemmbench --device cuda:0 --shapes 64 --orders rcr,rrr --host-launches 10000\n\n"
    "Exit status: 0; 1 if a result was wrong or a row failed; other numbers for wrong options.";

std::vector<std::string> DefaultFilters(const Options& options) {
  if (options.simulates()) {
    return {"mma.m16n8k16.f32.f16.f16.f32",
            "mma.m16n8k16.f16.f16.f16.f16",
            "mma.m16n8k16.f32.bf16.bf16.f32",
            "mma.m16n8k8.f32.tf32.tf32.f32",
            "mma.m16n8k32.f32.e4m3.e4m3.f32",
            "wgmma.m64n256k32.f32.e4m3.e4m3",
            "mma.m16n8k32.s32.s8.s8.s32",
            "mma.m16n8k256.s32.b1.b1.s32.and.popc",
            "mma.m16n8k16.f64",
            "mma.sp.m16n8k32.f32.f16.f16.f32"};
  }
  if (options.gpu) {
    return {"wgmma.m64n256k16.f32.f16.f16_*",
            "wgmma.m64n256k16.f32.bf16.bf16_*",
            "wgmma.m64n256k8.f32.tf32.tf32_*",
            "wgmma.m64n128k32.f32.e4m3.e4m3_p128_*",
            "wgmma.m64n256k32.f32.e4m3.e4m3_*",
            "wgmma.m64n256k32.s32.s8.s8_*",
            "mma.m16n8k16.f32.f16.f16.f32_*",
            "mma.m16n8k16.f16.f16.f16.f16_*",
            "mma.m16n8k16.f32.bf16.bf16.f32_*",
            "mma.m16n8k8.f32.tf32.tf32.f32_*",
            "mma.m16n8k16.f64_*",
            "mma.m16n8k32.s32.s8.s8.s32_*",
            "mma.m16n8k32.f32.e4m3.e4m3.f32_*",
            "mma.m16n8k256.s32.b1.b1.s32.and.popc_*",
            "mma.sp.m16n8k32.f32.f16.f16.f32_*",
            "mma.sp.m16n8k32.f32.bf16.bf16.f32_*",
            "mma.sp.m16n8k16.f32.tf32.tf32.f32_*",
            "mma.sp.m16n8k64.s32.s8.s8.s32_*"};
  }
  return {"onednn.f32.f32.f32", "openblas.f64.f64.f64", "onednn.s32.s8.s8", "onednn.f32.bf16.bf16"};
}

std::string DefaultShapes(const Options& options) {
  if (options.simulates()) return "1024";
  return options.gpu ? "4096" : "2048";
}

// "cuda:3".
absl::StatusOr<int> ParseGpu(std::string_view text) {
  constexpr std::string_view kPrefix = "cuda:";
  if (text.substr(0, kPrefix.size()) == kPrefix) {
    const std::optional<int> index = ParseDecimal<int>(text.substr(kPrefix.size()));
    if (index && *index >= 0) return *index;
  }
  return Invalid("--device", text, "cpu or cuda:<number>");
}

std::string CheckChip(const std::string& name) {
  if (mma::ChipFromName(name)) return "";
  return "got " + name +
         ", want sm_70, sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_103 or sm_120";
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--device", options.device, "Device of the rows: cpu or cuda:<number>")
      ->capture_default_str();
  app.add_option("--filter", options.filters,
                 "Patterns of row names, separated by commas; may be repeated")
      ->delimiter(',')
      ->default_str("one row of each library type, or of each kind of instruction");
  app.add_option("--shapes", options.shapes_text, "Products, separated by commas; see below")
      ->default_str("2048; simulator: 1024; GPU: 4096");
  app.add_option("--seconds", options.seconds,
                 "Time for the samples of each row and shape; a GPU also warms up, for a quarter "
                 "of a second or more, until times settle")
      ->transform(option::NumberFrom(0.0, std::numeric_limits<double>::max()))
      ->capture_default_str();
  app.add_option("--repeat", options.repeat, "Min number of samples")
      ->transform(option::NumberFrom(1, 1000000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads of the CPU libraries and the simulator")
      ->transform(option::NumberFrom(1, 4096))
      ->capture_default_str();
  app.add_flag(
      "--list", options.lists,
      "List the rows of the catalogue that the other options select (default: all), and exit");
}

void AddReportOptions(CLI::App& app, Options& options) {
  CLI::Option_group& group = *app.add_option_group("Report");
  group.add_option("--json", options.json,
                   "Write the report as JSON to this file, after each shape; - is standard output, "
                   "instead of the table");
  group.add_option("--save", options.save,
                   "Also write the report as JSON to this file, after each shape");
  group.add_option("--csv", options.csv,
                   "Write the measurements as CSV to this file, after each shape");
  group.add_flag("--progress", options.shows_progress,
                 "Print progress to standard error even if it is not a terminal");
}

void AddHostOptions(CLI::App& app, Options& options) {
  CLI::Option_group& group = *app.add_option_group("CPU and simulator");
  group
      .add_option("--chip", options.chip,
                  "Time the simulator of this chip (such as sm_90) instead of the libraries, and "
                  "compare it with its own scalar path")
      ->check(CheckChip);
  group.add_option("--path", options.path, "Time only this path of the simulator")
      ->check(CLI::IsMember({"scalar", "avx2", "avx512"}));
  group.add_option("--b-order", options.b_order, "Storage order of B; A and D are row major")
      ->check(CLI::IsMember({"row", "column"}))
      ->capture_default_str();
}

void AddGpuOptions(CLI::App& app, Options& options) {
  CLI::Option_group& group = *app.add_option_group("GPU");
  group
      .add_option("--orders", options.orders_text,
                  "Orders of A, B and D, r for rows and c for columns, separated by commas, or all")
      ->capture_default_str();
  group
      .add_option("--leading-dimension-offset", options.leading_dimension_offset,
                  "Elements between the lines of the dense matrices: 1 aligns none of them")
      ->transform(option::NumberFrom(0, 1 << 20))
      ->capture_default_str();
  group.add_option("--output-type", options.output_type, "Type of D")
      ->default_str("that of the row's accumulators");
  group
      .add_option("--epilogue", options.epilogue,
                  "Epilogue: none, bias (of D's type, per column), an activation (relu, gelu-erf, "
                  "gelu-tanh, silu), or both, as in bias-relu. cuBLASLt has relu and gelu-tanh")
      ->capture_default_str();
  group
      .add_option(
          "--blocks", options.blocks,
          "Blocks of A and B that have a factor each, f32: rows or columns by elements along "
          "k, as in 1x128,128x128; or none. For types of 8 bits")
      ->capture_default_str();
  group
      .add_option("--quantized", options.quantized,
                  "Types of A and of B for rows of f16 and bf16, which dequantize them, with the "
                  "type and blocks of their factors: none,s4:f32:1x128 for weights, "
                  "e2m1:ue4m3:1x16,e2m1:ue4m3:1x16 for NVFP4; or none. Libraries multiply operands "
                  "of the row's own types")
      ->capture_default_str();
  group
      .add_option("--alone", options.alone_seconds,
                  "Seconds for which each row and each library then runs alone on the GPU, to "
                  "measure its rate and energy at its own clock; 0 skips this")
      ->transform(option::NumberFrom(0.0, std::numeric_limits<double>::max()))
      ->capture_default_str();
  group
      .add_option("--host-launches", options.host_launches,
                  "Launches of each row that the host then makes without waiting, to measure the "
                  "host time of a launch; 0 skips this")
      ->transform(option::NumberFrom(0, 1 << 20))
      ->capture_default_str();
  group.add_flag("--errors", options.measures_errors,
                 "Instead of times, report the largest error relative to the largest of 128 x 128 "
                 "elements of D, for e4m3 and f32 products of several k, by gemmd's choice and by "
                 "cuBLASLt, each by default and (e4m3) with fast accumulation. Fails if gemmd's "
                 "default is worse than cuBLASLt's");
  group.add_flag("--no-libraries", options.leaves_libraries_out,
                 "Use neither cuBLASLt nor cuSPARSELt");
  group.add_option("--cublaslt", options.cublaslt, "Path of libcublasLt.so")
      ->default_str("the loader's, or /usr/local/cuda's");
  group.add_option("--cusparselt", options.cusparselt, "Path of libcusparseLt.so")
      ->default_str("the loader's");
}

// Roughly shell syntax: arguments with special characters are quoted.
std::string CommandText(int argc, const char* const* argv) {
  constexpr std::string_view kPlain = "-_.,:/=+@%";
  std::string text = "gemmbench";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool is_plain =
        !argument.empty() && std::all_of(argument.begin(), argument.end(), [&](unsigned char c) {
          return std::isalnum(c) != 0 ||
                 kPlain.find(static_cast<char>(c)) != std::string_view::npos;
        });
    text += is_plain ? " " + argument : " '" + argument + "'";
  }
  return text;
}

absl::StatusOr<Output> ParseOutput(const Options& options) {
  Output output;
  RETURN_IF_ERROR(ParseEpilogue(options.epilogue, output));
  RETURN_IF_ERROR(ParseBlocks(options.blocks, output));
  if (options.blocks != "none" && options.quantized != "none") {
    return Invalid("--quantized", options.quantized, "none where --blocks is given");
  }
  RETURN_IF_ERROR(ParseQuantized(options.quantized, output));
  if (options.output_type.empty()) return output;
  output.type = ElementTypeFromName(options.output_type);
  if (output.type) return output;
  return Invalid("--output-type", options.output_type, "a type of elements such as bf16");
}

}  // namespace

absl::Status ParseOptions(int argc, const char* const* argv, CLI::App& app, Options& options) {
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.shows_progress = isatty(STDERR_FILENO) != 0;
  app.description(kDescription);
  app.footer(kFooter);
  AddOptions(app, options);
  AddReportOptions(app, options);
  AddHostOptions(app, options);
  AddGpuOptions(app, options);
  app.parse(argc, argv);
  options.command = CommandText(argc, argv);
  if (options.device != "cpu") {
    ASSIGN_OR_RETURN(options.gpu, ParseGpu(options.device));
    if (options.simulates()) {
      return Invalid("--chip", options.chip, "none where --device is a GPU");
    }
  }
  const bool lists_all = options.lists && app.count("--device") == 0 && !options.simulates();
  if (options.filters.empty()) {
    options.filters = lists_all ? std::vector<std::string>{"*"} : DefaultFilters(options);
  }
  if (options.shapes_text.empty()) options.shapes_text = DefaultShapes(options);
  ASSIGN_OR_RETURN(options.shapes, ParseShapes(options.shapes_text));
  for (const Shape& shape : options.shapes) {
    if (shape.batch > 1 && !options.gpu) {
      return Invalid("--shapes", NameOf(shape), "one product, where --device is no GPU");
    }
  }
  ASSIGN_OR_RETURN(options.orders, ParseOrders(options.orders_text));
  ASSIGN_OR_RETURN(options.output, ParseOutput(options));
  const OptionFile outputs[] = {{"--json", options.json == "-" ? "" : options.json},
                                {"--save", options.save},
                                {"--csv", options.csv}};
  const OptionFile inputs[] = {{"--cublaslt", options.cublaslt},
                               {"--cusparselt", options.cusparselt}};
  return CheckOutputs(outputs, inputs);
}

bool Matches(const std::string& pattern, std::string_view name) {
  return fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

std::vector<const Kernel*> ChooseRows(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns) {
  std::vector<const Kernel*> rows;
  for (const Kernel& kernel : catalog) {
    const bool is_chosen = std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
      return Matches(pattern, kernel.name);
    });
    if (is_chosen) rows.push_back(&kernel);
  }
  return rows;
}

std::vector<std::string> IdlePatterns(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns) {
  std::vector<std::string> idle;
  for (const std::string& pattern : patterns) {
    if (ChooseRows(catalog, {pattern}).empty()) idle.push_back(pattern);
  }
  return idle;
}

}  // namespace gemmd::bench
