// SPDX-License-Identifier: Apache-2.0
//
// gemmctl: usage, exit codes, listings, health, help.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "client/gemmctl/command_line.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(GemmctlTest, BadUsageIsTwo) {
  const ScratchFolder folder;
  const std::string a = folder.Path("a.npy");
  ASSERT_EQ(RunGemmctl({"random", "2,3", "-o", a}, "").code, ExitCode::kOk);
  const std::vector<std::vector<std::string>> bad = {
      {},
      {"conquer"},
      {"multiply"},
      {"multiply", a},
      {"multiply", a, a},  // 3 against 2.
      {"multiply", a, folder.Path("missing.npy")},
      {"multiply", a, a, "--random", "1,2,3"},
      {"multiply", "--random", "1,2"},
      {"multiply", "--random", "1,2,x"},
      {"multiply", "--random", "-1,2,3"},
      {"multiply", "--random", "1099511627776,1099511627776,1"},
      {"multiply", "--random", "1,2,3", "--type", "f31"},
      {"multiply", "--random", "1,2,3", "--repeat", "0"},
      {"multiply", "--random", "1,2,3", "--bias", a},
      {"multiply", "--random", "1,2,3", "--activation", "gelu"},
      {"multiply", "--random", "1,2,3", "--nonsense"},
      {"multiply", "--random", "1,2,3", "--device", "cpu", "--chip", "sm_90"},
      {"fragment"},
      {"fragment", "mma.m16n8k16.f32.f16.f16.f32", "--operand", "e"},
      {"multiply", a, a, "--transpose-b", "--type", "bf16"},
      {"info", "--timeout", "soon"},
      {"info", "--timeout", "-1"},
      {"doctor", "--timeout", "soon"},
      {"info", "--address", "nowhere"},
      {"random", "3", "-o", "-"},
      {"random", "3,3"},
  };
  for (const auto& arguments : bad) {
    const Outcome run = RunGemmctl(arguments, "127.0.0.1:1");
    EXPECT_EQ(run.code, ExitCode::kUsage) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.err, StartsWith("gemmctl: ")) << testing::PrintToString(arguments);
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST(GemmctlTest, BadUsageIsToldWithWhatWouldBeRight) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{}, "command: got none, want a command of gemmctl (gemmctl --help lists them)"},
      {{"mutliply"},
       "command: got mutliply, want a command of gemmctl: did you mean multiply? (gemmctl"},
      {{"conquer"}, "command: got conquer, want a command of gemmctl (gemmctl --help"},
      {{"--jsn", "ls"}, "option: got --jsn, want an option of gemmctl ls: did you mean --json?"},
      {{"multiply", "--randm=1,2,3"},
       "option: got --randm, want an option of gemmctl multiply: did you mean --random? (gemmctl "
       "multiply --help lists them)"},
      {{"info", "here"}, "argument: got here, which gemmctl info does not take"},
      {{"multiply", "--random", "1,2"}, "--random: got 1,2, want 3 whole numbers from 0 on with"},
      {{"random", "1,2,3,4", "-o", "-"}, "SHAPE: got 1,2,3,4, want 2 to 3 whole numbers"},
      {{"multiply", "--batch", "-1"}, "--batch: got -1, want a whole number from 0 to 92"},
      {{"multiply", "--batch", "0x10"}, "--batch: got 0x10, want a whole number from 0 to 92"},
      {{"multiply", "--repeat", "nan"}, "--repeat: got nan, want a whole number from 1 to 100000"},
      {{"random", "+3,3", "-o", "-"}, "SHAPE: got +3,3, want 2 to 3 whole numbers"},
      {{"random", "3,3", "-o", "-", "--seed", "18446744073709551616"},
       "--seed: got 18446744073709551616, want a whole number from 0 to 18446744073709551615"},
      {{"multiply", "--alpha", "nan"}, "--alpha: got nan, want a number"},
      {{"multiply", "--type", "f32", "--type", "f16"}, "--type: got 2 values, want 1"},
      {{"multiply", "--random="}, "--random: got nothing, want M,N,K"},
      {{"multiply", "--random=2,2,2", "--type=e4m3", "--scale-a=1e39"},
       "--scale-a: got 1e39, want at most 3.40282e+38, as f32 has"},
      {{"multiply", "--random=2,2,2", "--server-verify=some"},
       "--server-verify: got some, want none, sampled"},
      {{"multiply", "--random=2,2,2", "--server-verify=sampled:"},
       "--server-verify: got sampled:, want none, sampled"},
      {{"multiply", "--random=2,2,2", "--server-verify=sampled:0"},
       "--server-verify: got sampled:0, want none, sampled"},
      {{"multiply", "--random=2,2,2", "--server-verify=sampled:1.5"},
       "--server-verify: got sampled:1.5, want none, sampled"},
      {{"multiply", "--random=2,2,2", "--server-verify=sampled:nan"},
       "--server-verify: got sampled:nan, want none, sampled"},
      {{"multiply", "--random=2,2,2", "--server-verify=checksum:0.5"},
       "--server-verify: got checksum:0.5, want none, sampled"},
      {{"multiply", "--random=3,4,5", "--traceparent=x"}, "--traceparent: got x"},
      {{"multiply", "--random=3,4,5",
        "--traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-010"},
       "--traceparent: got 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-010"},
      {{"multiply", "--random=3,4,5",
        "--traceparent=01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
       "--traceparent: got 01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
      {{"multiply", "--random=3,4,5",
        "--traceparent=00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
       "--traceparent: got 00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
      {{"multiply"}, "A, B: got none, want two .npy files, "},
      {{"multiply", "a.npy"}, "B: got none, want two .npy files, "},
      {{"convert", "a.npy", "--order", "colum"},
       "--order: got colum, want row or column: did you mean column?"},
      {{"multiply", "--type", "bf61"},
       "--type: got bf61, want f64, f32, tf32, f16, bf16, e4m3, e5m2, e3m2, e2m3, e2m1, s8, u8, "
       "s4, u4, b1 or s32: did you mean bf16?"},
  };
  for (const auto& [arguments, message] : bad) {
    EXPECT_THAT(RunGemmctl(arguments, "127.0.0.1:1").err,
                StartsWith("gemmctl: INVALID_ARGUMENT: " + message));
  }
}

TEST(GemmctlTest, HelpIsGivenBesideWhatIsWrong) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> asked = {
      {{"random", "a.npy", "--help"}, "gemmctl random [OPTIONS] SHAPE"},
      {{"random", "--help", "--sede", "1"}, "gemmctl random [OPTIONS] SHAPE"},
      {{"--timeout", "soon", "--help"}, "gemmctl [OPTIONS] SUBCOMMAND"},
      {{"mutliply", "--help"}, "gemmctl [OPTIONS] SUBCOMMAND"},
      {{"random", "a.npy", "--help-all"}, "Write a random matrix"}};
  for (const auto& [arguments, text] : asked) {
    const Outcome run = RunGemmctl(arguments, "127.0.0.1:1");
    EXPECT_EQ(run.code, ExitCode::kOk) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, HasSubstr(text));
  }
}

TEST(GemmctlTest, ShapesMayBeWrittenWithX) {
  const Outcome letters = RunGemmctl({"random", "2x3x4", "-o", "-"}, "");
  EXPECT_EQ(letters.code, ExitCode::kOk) << letters.err;
  EXPECT_EQ(letters.out, RunGemmctl({"random", "2,3,4", "-o", "-"}, "").out);
}

TEST(GemmctlTest, NumbersAreDecimal) {
  const auto random = [](const char* seed) {
    return RunGemmctl({"random", "2x3", "-o", "-", "--seed", seed}, "").out;
  };
  EXPECT_EQ(random("010"), random("10"));
  EXPECT_NE(random("010"), random("8"));
}

TEST(GemmctlTest, ErrorsAreJsonWhereResultsAre) {
  const auto error_of = [](const std::vector<std::string>& arguments) {
    return nlohmann::json::parse(RunGemmctl(arguments, "127.0.0.1:1").err)["error"];
  };
  const nlohmann::json usage = error_of({"ls", "--jsn", "--json"});
  EXPECT_EQ(usage["code"], "INVALID_ARGUMENT");
  EXPECT_THAT(usage["message"], StartsWith("option: got --jsn"));
  EXPECT_EQ(error_of({"info", "--json"})["code"], "UNAVAILABLE");
  EXPECT_EQ(error_of({"random", "2,2", "-o", "/nowhere/a\"b.npy", "--json"})["code"], "NOT_FOUND");
}

TEST(GemmctlTest, AServerThatDoesNotAnswerIsThree) {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest&,
                       v1::MultiplyResponse&) { return std::nullopt; };
  const FakeServer slow(script);
  const Outcome run =
      RunGemmctl({"multiply", "--random", "1,1,1", "--timeout", "0.05"}, slow.address());
  EXPECT_EQ(run.code, ExitCode::kUnreachable);
  EXPECT_THAT(run.err, StartsWith("gemmctl: DEADLINE_EXCEEDED: "));
}

TEST(GemmctlTest, ExplainsTenCandidatesAndEachReasonOnce) {
  FakeScript script;
  script.explain = [](const v1::ExplainRequest&, v1::ExplainResponse& response) {
    for (int i = 0; i < 25; ++i) {
      response.add_candidates()->set_kernel("taken_" + std::to_string(i) + ".");
      v1::Refusal& refusal = *response.add_refusals();
      refusal.set_kernel("refused_" + std::to_string(i) + ".");
      refusal.set_reason(i % 5 == 0 ? "wrong type" : "wrong chip");
    }
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  const Outcome brief = RunGemmctl({"explain", "--random", "4,4,4"}, server.address());
  EXPECT_THAT(brief.out, HasSubstr("taken_9. "));
  EXPECT_THAT(brief.out, testing::Not(HasSubstr("taken_10.")));
  EXPECT_THAT(brief.out, HasSubstr("and 15 more (--all shows them)"));
  EXPECT_THAT(brief.out, HasSubstr("      5  wrong type  refused_0.\n"));
  EXPECT_THAT(brief.out, HasSubstr("     20  wrong chip  refused_1.\n"));
  EXPECT_THAT(brief.out, testing::Not(HasSubstr("refused_2.")));
  EXPECT_THAT(brief.out, HasSubstr("25 kernels refused"));
  const Outcome complete = RunGemmctl({"explain", "--random", "4,4,4", "--all"}, server.address());
  EXPECT_THAT(complete.out, HasSubstr("taken_24."));
  EXPECT_THAT(complete.out, HasSubstr("refused_24."));
  EXPECT_THAT(complete.out, testing::Not(HasSubstr("--all")));
}

TEST(GemmctlTest, MakesRandomFiles) {
  const ScratchFolder folder;
  const std::string path = folder.Path("r.npy");
  const Outcome run = RunGemmctl({"random", "2,3", "--type", "e4m3", "-o", path}, "");
  EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
  const auto array = ReadNpyFile(path, v1::ELEMENT_TYPE_E4M3);
  ASSERT_THAT(array, IsOk());
  EXPECT_THAT(array->shape, testing::ElementsAre(2, 3));
  const Outcome batch = RunGemmctl({"random", "4,2,3", "--order", "column", "-o", "-"}, "");
  EXPECT_THAT(ReadNpyText(batch.out)->shape, testing::ElementsAre(4, 2, 3));
}

TEST(GemmctlTest, HelpTeaches) {
  const Outcome run = RunGemmctl({"--help"}, "127.0.0.1:8470");
  EXPECT_EQ(run.code, ExitCode::kOk);
  EXPECT_THAT(run.out, HasSubstr("Exit codes:\n  0  done"));
  EXPECT_THAT(run.out, HasSubstr("127.0.0.1:8470"));
  for (const Command& command : Commands()) {
    const Outcome help = RunGemmctl({command.name, "--help"}, "");
    EXPECT_EQ(help.code, ExitCode::kOk);
    EXPECT_THAT(help.out, HasSubstr(std::string("Examples:\n  gemmctl ") + command.name));
  }
  EXPECT_THAT(RunGemmctl({"--version"}, "").out, StartsWith("gemmctl 0."));
}

}  // namespace
}  // namespace gemmd
