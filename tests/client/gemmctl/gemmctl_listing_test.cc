// SPDX-License-Identifier: Apache-2.0
//
// gemmctl kernels, devices and instructions: what is listed, and what is combined in one line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/gemmctl/server_commands.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(WidthsTest, NumbersAreRuns) {
  EXPECT_EQ(DescribeNumbers({}), "");
  EXPECT_EQ(DescribeNumbers({8}), "8");
  EXPECT_EQ(DescribeNumbers({16, 8}), "8, 16");
  EXPECT_EQ(DescribeNumbers({8, 16, 24}), "8..24 by 8");
  EXPECT_EQ(DescribeNumbers({8, 16, 24, 32, 48, 64, 80}), "8..32 by 8, 48..80 by 16");
  EXPECT_EQ(DescribeNumbers({8, 16, 24, 32, 48, 64}), "8..32 by 8, 48, 64");
}

TEST(WidthsTest, OnlyWidthsOfWgmmaWithEqualCellsShareALine) {
  EXPECT_THAT(CollapseWidths({{"wgmma.m64n16k16.f32.f16.f16", "x"},
                              {"mma.m16n8k16.f16.f16.f16.f16", "x"},
                              {"mma.m16n8k16.f16.f16.f16.f16", "x"},
                              {"wgmma.m64n8k16.f32.f16.f16", "x"},
                              {"wgmma.m64n8k16.f32.bf16.bf16", "x"},
                              {"wgmma.m64n24k16.f32.f16.f16", "y"},
                              {"wgmma.sp.m64n8k32.f32.f16.f16", "x"},
                              {"wgmma.m64nXk16.f32.f16.f16", "x"}}),
              ElementsAre(TableRow{"wgmma.m64nNk16.f32.f16.f16, N = 8, 16", "x"},
                          TableRow{"mma.m16n8k16.f16.f16.f16.f16", "x"},
                          TableRow{"mma.m16n8k16.f16.f16.f16.f16", "x"},
                          TableRow{"wgmma.m64n8k16.f32.bf16.bf16", "x"},
                          TableRow{"wgmma.m64n24k16.f32.f16.f16", "y"},
                          TableRow{"wgmma.sp.m64n8k32.f32.f16.f16", "x"},
                          TableRow{"wgmma.m64nXk16.f32.f16.f16", "x"}));
}

void AddKernel(const std::string& name, const std::string& kind, const std::string& available_on,
               v1::ListKernelsResponse& response) {
  v1::Kernel& kernel = *response.add_kernels();
  kernel.set_name(name);
  kernel.set_device_kind(kind);
  for (const char* device : {"cpu", "sim:sm_90"}) {
    v1::KernelAvailability& availability = *kernel.add_availability();
    availability.set_device(device);
    availability.set_available(device == available_on);
  }
}

FakeScript KernelScript() {
  FakeScript script;
  script.list_kernels = [](const v1::ListKernelsRequest&, v1::ListKernelsResponse& response) {
    AddKernel("onednn.runs", "cpu", "cpu", response);
    AddKernel("onednn.lacks", "cpu", "", response);
    AddKernel("wgmma.m64n8k16.f32.f16.f16", "sim", "sim:sm_90", response);
    AddKernel("wgmma.m64n16k16.f32.f16.f16", "sim", "sim:sm_90", response);
    AddKernel("mma.later", "sim", "", response);
    return grpc::Status::OK;
  };
  script.list_devices = [](v1::ListDevicesResponse& response) {
    v1::Device& cpu = *response.add_devices();
    cpu.set_name("cpu");
    cpu.set_kind("cpu");
    v1::Device& sim = *response.add_devices();
    sim.set_name("sim:sm_90");
    sim.set_kind("sim");
    sim.set_arithmetic("verified");
    return grpc::Status::OK;
  };
  return script;
}

// The first words of the lines after the heading.
std::vector<std::string> Names(const std::string& text) {
  std::vector<std::string> names;
  for (size_t start = text.find('\n') + 1; start < text.size();) {
    const size_t end = text.find('\n', start);
    names.push_back(text.substr(start, text.find("  ", start) - start));
    start = end + 1;
  }
  return names;
}

TEST(GemmctlListingTest, DevicesSayWhatTheyAreAndWhatIsWrong) {
  FakeScript script;
  script.list_devices = [](v1::ListDevicesResponse& response) {
    v1::Device& gpu = *response.add_devices();
    gpu.set_name("cuda:0");
    gpu.set_kind("cuda");
    gpu.set_chip("sm_90");
    gpu.set_multiprocessors(132);
    gpu.set_clock_khz(1980000);
    gpu.set_not_ready_reason("device: cuda:0 is starting again");
    gpu.add_rates()->set_engine("cuda.mma");
    v1::Device& cpu = *response.add_devices();
    cpu.set_name("cpu");
    cpu.set_kind("cpu");
    cpu.set_threads(8);
    cpu.set_ready(true);
    cpu.add_rates()->set_engine("onednn.f32");
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  const std::string text = RunGemmctl({"devices"}, server.address()).out;
  EXPECT_THAT(text, testing::ContainsRegex("cuda:0 +cuda +sm_90 +- +no +132 SMs, 1.98 GHz"));
  EXPECT_THAT(text, testing::ContainsRegex("cpu +cpu +- +- +yes +8 threads"));
  EXPECT_THAT(text, testing::HasSubstr("\nnot ready: device: cuda:0 is starting again\n"));
  EXPECT_THAT(text, testing::HasSubstr("onednn.f32"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("cuda.mma")));
}

TEST(GemmctlListingTest, KernelsAreThoseThatSomeDeviceRuns) {
  const FakeServer server(KernelScript());
  const auto kernels = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "kernels");
    return Names(RunGemmctl(arguments, server.address()).out);
  };
  const std::string collapsed = "wgmma.m64nNk16.f32.f16.f16, N = 8, 16";
  EXPECT_THAT(kernels({}), ElementsAre("onednn.runs", collapsed));
  EXPECT_THAT(kernels({"--device", "cpu"}), ElementsAre("onednn.runs"));
  EXPECT_THAT(kernels({"--device", "cpu", "--all"}), ElementsAre("onednn.runs", "onednn.lacks"));
  EXPECT_THAT(kernels({"--device", "sim:sm_90"}), ElementsAre(collapsed));
  EXPECT_EQ(kernels({"--all"}).size(), 5u);
  const auto json = nlohmann::json::parse(RunGemmctl({"kernels", "--json"}, server.address()).out);
  EXPECT_EQ(json["kernels"].size(), 3u);
}

TEST(GemmctlListingTest, DevicesTellTheirArithmetic) {
  const FakeServer server(KernelScript());
  const Outcome run = RunGemmctl({"devices"}, server.address());
  EXPECT_THAT(run.out, StartsWith("device     kind  chip  arithmetic  ready"));
  EXPECT_THAT(run.out, HasSubstr("\ncpu        cpu   -     -           no"));
  EXPECT_THAT(run.out, HasSubstr("\nsim:sm_90  sim   -     verified    no"));
}

v1::Instruction& AddInstruction(const std::string& name, const std::string& family, int n,
                                v1::ListInstructionsResponse& response) {
  v1::Instruction& instruction = *response.add_instructions();
  instruction.set_name(name);
  instruction.set_family(family);
  instruction.set_m(64);
  instruction.set_n(n);
  instruction.set_k(16);
  instruction.set_a_type(v1::ELEMENT_TYPE_F16);
  instruction.set_b_type(v1::ELEMENT_TYPE_BF16);
  instruction.set_c_type(v1::ELEMENT_TYPE_F32);
  instruction.set_d_type(v1::ELEMENT_TYPE_F64);
  instruction.set_lanes(family == "wgmma" ? 128 : 32);
  instruction.set_a_registers(4);
  instruction.set_b_registers(family == "wgmma" ? 0 : 2);
  instruction.set_c_registers(n / 2);
  instruction.set_d_registers(n / 2);
  return instruction;
}

void AddChip(const std::string& chip, v1::InstructionSupport support, const std::string& lowering,
             v1::Instruction& instruction) {
  v1::ChipSupport& wire = *instruction.add_chips();
  wire.set_chip(chip);
  wire.set_support(support);
  wire.set_lowering(lowering);
}

FakeScript InstructionScript() {
  FakeScript script;
  script.list_instructions = [](const v1::ListInstructionsRequest&,
                                v1::ListInstructionsResponse& response) {
    v1::Instruction& mma = AddInstruction("mma.m64n8k16", "mma", 8, response);
    AddChip("sm_80", v1::INSTRUCTION_SUPPORT_NATIVE, "", mma);
    AddChip("sm_90", v1::INSTRUCTION_SUPPORT_EMULATED, "in two halves", mma);
    for (const int n : {24, 16, 8}) {
      v1::Instruction& wgmma = AddInstruction("wgmma.m64n" + std::to_string(n) + "k16.f32.f16.f16",
                                              "wgmma", n, response);
      AddChip("sm_80", v1::INSTRUCTION_SUPPORT_UNAVAILABLE, "", wgmma);
      AddChip("sm_90", v1::INSTRUCTION_SUPPORT_NATIVE, "", wgmma);
    }
    return grpc::Status::OK;
  };
  return script;
}

TEST(GemmctlListingTest, InstructionsByChip) {
  const FakeServer server(InstructionScript());
  const Outcome all = RunGemmctl({"instructions"}, server.address());
  EXPECT_EQ(all.out,
            "instruction                                 m x n x k    types                    "
            "sparse  80  90\n"
            "mma.m64n8k16                                64 x 8 x 16  f64 <- f16 x bf16 + f32  "
            "         N   e\n"
            "wgmma.m64nNk16.f32.f16.f16, N = 8..24 by 8  64 x N x 16  f64 <- f16 x bf16 + f32  "
            "         -   N\n"
            "\n"
            "4 instructions. Chips sm_70 and so on: N native, e emulated by ptxas, - "
            "unavailable.\n");
  const Outcome every = RunGemmctl({"instructions", "--all"}, server.address());
  EXPECT_THAT(every.out, HasSubstr("\nwgmma.m64n16k16.f32.f16.f16  64 x 16 x 16"));
}

TEST(GemmctlListingTest, InstructionsOfOneChip) {
  const FakeServer server(InstructionScript());
  const Outcome run = RunGemmctl({"instructions", "--chip", "sm_90"}, server.address());
  EXPECT_THAT(run.out, HasSubstr("a 4, b 2, c 4, d 4  emulated  in two halves\n"));
  EXPECT_THAT(run.out, HasSubstr("a 4                 native\n"));
  const Outcome json = RunGemmctl({"instructions", "--json"}, server.address());
  const auto instructions = nlohmann::json::parse(json.out)["instructions"];
  ASSERT_EQ(instructions.size(), 4u);
  EXPECT_EQ(instructions[0]["family"], "mma");
  EXPECT_EQ(instructions[0]["chips"][1]["chip"], "sm_90");
  EXPECT_EQ(instructions[0]["chips"][1]["support"], "emulated");
  EXPECT_EQ(instructions[0]["chips"][1]["lowering"], "in two halves");
}

TEST(GemmctlListingTest, FamiliesAreCounted) {
  const FakeServer server(InstructionScript());
  const Outcome run = RunGemmctl({"instructions", "--families"}, server.address());
  EXPECT_EQ(run.out,
            "family  instructions  sm_80       sm_90\n"
            "mma                1      1  1 emulated\n"
            "wgmma              3      -           3\n");
  EXPECT_THAT(run.out, Not(HasSubstr("n16")));
}

}  // namespace
}  // namespace gemmd
