// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/listing_flags.h"

#include <string>

namespace gemmd {
namespace {

void AddPattern(CLI::App& app, std::string& pattern) {
  app.add_option("--pattern", pattern, "Only names that match; * is any run of characters")
      ->type_name("PATTERN");
}

}  // namespace

void AddKernelsFlags(CLI::App& app, KernelsFlags& flags) {
  app.footer(
      "Lists the kernels that some device of the server runs; kernels of wgmma that differ in N "
      "alone share a line.\n\n"
      "Examples:\n"
      "  gemmctl kernels\n"
      "  gemmctl kernels --pattern '*bf16*' --device sim:sm_90\n"
      "  gemmctl kernels --all --json | jq -r '.kernels[].name'");
  AddPattern(app, flags.pattern);
  app.add_option("--device", flags.device, "Only kernels that this device runs")->type_name("NAME");
  app.add_flag("--all", flags.all,
               "Also kernels that no device runs (with --device: of its kind), one a line");
}

void AddInstructionsFlags(CLI::App& app, InstructionsFlags& flags) {
  app.footer(
      "Examples:\n"
      "  gemmctl instructions --chip sm_90\n"
      "  gemmctl instructions --pattern 'mma.sp.*bf16*'\n"
      "  gemmctl instructions --families");
  app.add_option("--chip", flags.chip,
                 "Only those that this chip has (sm_90), with what ptxas makes of emulated ones")
      ->type_name("CHIP");
  AddPattern(app, flags.pattern);
  app.add_flag("--all", flags.all, "Each N of wgmma on a line of its own");
  app.add_flag("--families", flags.families, "Count them by family and chip instead");
}

void AddTopFlags(CLI::App& app, TopFlags& flags) {
  app.footer(
      "Shows devices, queues, rates and durations of the last interval until Ctrl-C; bounds of "
      "durations are those of the server's buckets.\n\n"
      "Examples:\n"
      "  gemmctl top\n"
      "  gemmctl top --once --interval 5s\n"
      "  gemmctl top --json | jq --unbuffered '.rates[].products_per_second'");
  app.add_option("--interval", flags.interval, "Between two views, and that rates are taken over")
      ->capture_default_str()
      ->type_name("TIME");
  app.add_flag("--once", flags.once, "Show one view and exit");
}

void AddFragmentFlags(CLI::App& app, FragmentFlags& flags) {
  app.footer(
      "T5:{a0,a1} is elements 0 and 1 of A's fragment in lane 5, T5:[15:0] bits 15 to 0 of its "
      "metadata.\n\n"
      "Examples:\n"
      "  gemmctl fragment mma.m16n8k16.f32.f16.f16.f32\n"
      "  gemmctl fragment mma.sp.m16n8k32.f32.f16.f16.f32 --operand metadata --selector 1\n"
      "  gemmctl fragment wgmma.m64n16k16.f32.bf16.bf16 --svg wgmma.svg");
  app.add_option("NAME", flags.instruction, "An instruction; gemmctl instructions lists them")
      ->required()
      ->type_name("");
  app.add_option("--operand", flags.operand, "One operand (default: all)")
      ->check(CLI::IsMember({"a", "b", "c", "d", "metadata"}).description(""))
      ->type_name("a|b|c|d|metadata");
  app.add_option("--selector", flags.selector, "The sparsity selector of the metadata")
      ->capture_default_str()
      ->type_name("S");
  app.add_option("--svg", flags.svg_path, "Draw into this SVG file instead; - is standard output")
      ->type_name("PATH");
}

}  // namespace gemmd
