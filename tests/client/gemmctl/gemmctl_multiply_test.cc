// SPDX-License-Identifier: Apache-2.0
//
// gemmctl multiply: files, pipes, flags, repetition, verification.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

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

class GemmctlMultiplyTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.Path(name); }

  // A file of f32 elements.
  std::string FloatFile(const std::string& name, const std::vector<int64_t>& shape,
                        const std::vector<float>& values) {
    NpyArray array;
    array.type = v1::ELEMENT_TYPE_F32;
    array.shape = shape;
    array.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    EXPECT_THAT(WriteNpyFile(array, Path(name)), IsOk());
    return Path(name);
  }

  static std::string Floats(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

 private:
  ScratchFolder folder_;
};

TEST_F(GemmctlMultiplyTest, MultipliesFiles) {
  const FakeServer server(ComputingScript());
  const std::string a = FloatFile("a.npy", {2, 3}, {1, 2, 3, 4, 5, 6});
  const std::string b = FloatFile("b.npy", {3, 2}, {1, 0, 0, 1, 1, 1});
  const Outcome run =
      RunGemmctl({"multiply", a, b, "-o", Path("d.npy"), "--verify"}, server.address());
  EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_THAT(run.err, IsEmpty());
  EXPECT_THAT(run.out, HasSubstr("kernel   fake_f32\n"));
  EXPECT_THAT(run.out, HasSubstr("product  2 x 2 x 3, f32 <- f32 x f32, 24 operations\n"));
  EXPECT_THAT(run.out, HasSubstr("compute       1.00 us"));
  EXPECT_THAT(run.out, HasSubstr("verified  4 of 4 elements"));
  const auto d = ReadNpyFile(Path("d.npy"), v1::ELEMENT_TYPE_UNSPECIFIED);
  ASSERT_THAT(d, IsOk());
  EXPECT_THAT(d->shape, testing::ElementsAre(2, 2));
  EXPECT_EQ(d->data, Floats({4, 5, 10, 11}));
}

TEST_F(GemmctlMultiplyTest, ReadsAndWritesPipes) {
  const FakeServer server(ComputingScript());
  NpyArray a = {.type = v1::ELEMENT_TYPE_F32,
                .shape = {1, 2},
                .order = v1::ORDER_ROW_MAJOR,
                .data = Floats({2, 3})};
  NpyArray b = {.type = v1::ELEMENT_TYPE_F32,
                .shape = {2, 1},
                .order = v1::ORDER_ROW_MAJOR,
                .data = Floats({5, 7})};
  const Outcome run = RunGemmctl({"multiply", "-", "-", "-o", "-"}, server.address(),
                                 WriteNpyText(a) + WriteNpyText(b));
  EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
  const auto d = ReadNpyText(run.out);
  ASSERT_THAT(d, IsOk());
  EXPECT_EQ(d->data, Floats({31}));
  EXPECT_THAT(run.err, HasSubstr("kernel   fake_f32"));  // The report goes to standard error
                                                         // instead.
}

TEST_F(GemmctlMultiplyTest, RefusesTrailingBytesOfPipes) {
  const FakeServer server(ComputingScript());
  NpyArray a = {.type = v1::ELEMENT_TYPE_F32,
                .shape = {1, 1},
                .order = v1::ORDER_ROW_MAJOR,
                .data = Floats({2})};
  const std::string b = FloatFile("b.npy", {1, 1}, {1});
  const Outcome run = RunGemmctl({"multiply", "-", b}, server.address(), WriteNpyText(a) + "x");
  EXPECT_EQ(run.code, ExitCode::kUsage);
  EXPECT_THAT(run.err, HasSubstr("standard input: npy file: got bytes after the data"));
}

TEST_F(GemmctlMultiplyTest, RepeatsAndPrintsJson) {
  const FakeServer server(ComputingScript());
  const Outcome run = RunGemmctl(
      {"multiply", "--random", "8,8,8", "--repeat", "5", "--warmup", "2", "--json", "--verify"},
      server.address());
  EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_EQ(server.multiply_calls(), 7);
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["calls"], 5);
  EXPECT_EQ(json["response"]["operations"], 1024);
  EXPECT_EQ(json["stages"]["compute"]["p99_ns"], 1000);
  EXPECT_EQ(json["stages"]["overhead"]["p50_ns"], 500);
  EXPECT_GT(json["stages"]["round_trip"]["min_ns"], 0);
  EXPECT_EQ(json["verification"]["passed"], true);
  EXPECT_EQ(json["verification"]["checked_elements"], 64);
}

TEST_F(GemmctlMultiplyTest, AWrongResultHasItsOwnExitCode) {
  FakeScript script = ComputingScript();
  const auto multiply = script.multiply;
  script.multiply = [multiply](grpc::CallbackServerContext& context,
                               const v1::MultiplyRequest& request, v1::MultiplyResponse& response) {
    auto status = multiply(context, request, response);
    (*response.mutable_d()->mutable_data())[7] = '\x7f';  // The second element's sign and exponent.
    return status;
  };
  const FakeServer server(script);
  const Outcome run = RunGemmctl({"multiply", "--random", "4,4,4", "--verify"}, server.address());
  EXPECT_EQ(run.code, ExitCode::kVerification);
  EXPECT_THAT(run.err,
              StartsWith("gemmctl: DATA_LOSS: d: 1 of 16 elements are wrong; at [0, 1] got "));
}

TEST_F(GemmctlMultiplyTest, SendsFactorsOfBlocks) {
  v1::MultiplyRequest sent;
  const FakeServer server(KeepingScript(sent));
  const std::string floats = FloatFile("floats.npy", {3, 2}, {1, 2, 3, 4, 5, 6});
  NpyArray codes = {.type = v1::ELEMENT_TYPE_U8, .shape = {2, 5, 1}, .data = "abcdefghij"};
  ASSERT_THAT(WriteNpyFile(codes, Path("codes.npy")), IsOk());
  const std::vector<std::string> product = {"multiply", "--random", "3,5,20", "--batch",
                                            "2",        "--type",   "e4m3"};
  const auto run = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = product;
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunGemmctl(arguments, server.address());
  };
  EXPECT_EQ(run({"--blocks-a", "f32:1x16", "--scale-a", floats, "--blocks-b", "ue8m0:1x32",
                 "--scale-b", Path("codes.npy")})
                .code,
            ExitCode::kRefused);
  const v1::BlockScale& a = sent.a().scale().blocks();
  EXPECT_EQ(a.type(), v1::FACTOR_TYPE_F32);
  EXPECT_EQ(a.rows_per_block(), 1);
  EXPECT_EQ(a.k_per_block(), 16);
  EXPECT_EQ(a.factors(), Floats({1, 2, 3, 4, 5, 6}));
  EXPECT_FALSE(a.per_matrix());
  const v1::BlockScale& b = sent.b().scale().blocks();
  EXPECT_EQ(b.type(), v1::FACTOR_TYPE_UE8M0);
  EXPECT_EQ(b.factors(), "abcdefghij");
  EXPECT_TRUE(b.per_matrix());

  const auto refusal = [&](const std::vector<std::string>& flags) {
    const Outcome outcome = run(flags);
    EXPECT_EQ(outcome.code, ExitCode::kUsage);
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--blocks-a", "bf16:1x16", "--scale-a", floats}),
              HasSubstr("--blocks-a: got bf16:1x16, want f32, ue8m0 or ue4m3 and a block"));
  EXPECT_THAT(refusal({"--blocks-a", "f32:0x16", "--scale-a", floats}), HasSubstr("f32:0x16"));
  EXPECT_THAT(refusal({"--blocks-a", "f32:1x16"}), HasSubstr("--scale-a: got none"));
  EXPECT_THAT(
      refusal({"--blocks-a", "ue8m0:1x16", "--scale-a", floats}),
      HasSubstr("--scale-a: got an array of 2 dimensions and type f32, want one of 2 or 3 in "
                "C order, of u8 for --blocks-a ue8m0:1x16"));
}

TEST_F(GemmctlMultiplyTest, SendsTheOperandsThatTheFlagsDescribe) {
  v1::MultiplyRequest sent;
  const FakeServer server(KeepingScript(sent));
  const std::string scale = FloatFile("scale.npy", {5}, {1, 2, 3, 4, 5});
  const Outcome run = RunGemmctl(
      {"multiply", "--random", "3,5,4", "--batch", "2", "--a-type", "s8", "--b-type", "u8",
       "--transpose-a", "--b-order", "column", "--scale-a", "0.25", "--scale-b", scale},
      server.address());
  EXPECT_EQ(run.code, ExitCode::kRefused);
  EXPECT_EQ(run.err, "gemmctl: UNIMPLEMENTED: kernel: got nothing\n");
  EXPECT_EQ(sent.m(), 3);
  EXPECT_EQ(sent.n(), 5);
  EXPECT_EQ(sent.k(), 4);
  EXPECT_EQ(sent.batch(), 2);
  EXPECT_EQ(sent.a().type(), v1::ELEMENT_TYPE_S8);
  EXPECT_EQ(sent.b().type(), v1::ELEMENT_TYPE_U8);
  EXPECT_TRUE(sent.a().transpose());
  EXPECT_EQ(sent.b().order(), v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(sent.a().data().size(), 24u);
  EXPECT_THAT(sent.a().scale().values(), testing::ElementsAre(0.25F));
  EXPECT_THAT(sent.b().scale().values(), testing::ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(GemmctlMultiplyTest, SendsASparseA) {
  v1::MultiplyRequest sent;
  const FakeServer server(KeepingScript(sent));
  const std::string a = FloatFile("a.npy", {4, 2}, {1, 0, 0, 4, 2, 0, 0, 3});
  const std::string b = FloatFile("b.npy", {4, 1}, {1, 1, 1, 1});
  const Outcome run =
      RunGemmctl({"multiply", a, b, "--transpose-a", "--sparse-a"}, server.address());
  EXPECT_EQ(run.err, "gemmctl: UNIMPLEMENTED: kernel: got nothing\n");
  EXPECT_EQ(sent.m(), 2);
  EXPECT_EQ(sent.k(), 4);
  EXPECT_EQ(sent.a().sparsity(), v1::SPARSITY_2_4);
  EXPECT_FALSE(sent.a().transpose());
  EXPECT_EQ(sent.a().data(), Floats({1, 2, 4, 3}) + std::string("\x00\x05", 2));
}

TEST_F(GemmctlMultiplyTest, PrunesASparseA) {
  v1::MultiplyRequest sent;
  const FakeServer server(KeepingScript(sent));
  const std::string a = FloatFile("a.npy", {1, 4}, {1, -2, 4, 0});
  const std::string b = FloatFile("b.npy", {4, 1}, {1, 1, 1, 1});
  Outcome run = RunGemmctl({"multiply", a, b, "--sparse-a"}, server.address());
  EXPECT_EQ(run.code, ExitCode::kUsage);
  EXPECT_EQ(run.err,
            "gemmctl: INVALID_ARGUMENT: a.data: row 0, group 0: got 2 nonzero elements, want at "
            "most 1 (--prune drops the smallest)\n");
  run = RunGemmctl({"multiply", a, b, "--sparse-a", "--prune"}, server.address());
  EXPECT_THAT(run.err, StartsWith("gemmctl: a: dropped 1 of 3 nonzero elements\n"));
  EXPECT_EQ(sent.a().data(), Floats({-2, 4}) + std::string("\x01", 1));
  run = RunGemmctl({"multiply", a, b, "--prune"}, server.address());
  EXPECT_EQ(run.code, ExitCode::kUsage);
  EXPECT_THAT(run.err, HasSubstr("--sparse-a"));
}

TEST_F(GemmctlMultiplyTest, ExplainsASparseA) {
  v1::MultiplyRequest sent;
  FakeScript script;
  script.explain = [&](const v1::ExplainRequest& request, v1::ExplainResponse&) {
    sent = request.request();
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  const Outcome run = RunGemmctl({"explain", "--random", "65536,8,65536", "--sparse-a", "--a-order",
                                  "column", "--type", "bf16"},
                                 server.address());
  EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
  EXPECT_THAT(run.out, HasSubstr("bf16 2:4 x bf16"));
  EXPECT_EQ(sent.a().sparsity(), v1::SPARSITY_2_4);
  EXPECT_EQ(sent.a().order(), v1::ORDER_ROW_MAJOR);
  EXPECT_TRUE(sent.a().data().empty());
}

TEST_F(GemmctlMultiplyTest, SendsTheResultThatTheFlagsDescribe) {
  v1::MultiplyRequest sent;
  const FakeServer server(KeepingScript(sent));
  const std::string bias = FloatFile("bias.npy", {3}, {1, 2, 3});
  RunGemmctl({"multiply",
              "--random",
              "3,5,4",
              "--type",
              "s8",
              "--alpha",
              "0.5",
              "--beta",
              "2",
              "--bias",
              bias,
              "--bias-axis",
              "rows",
              "--activation",
              "gelu-tanh",
              "--output-type",
              "bf16",
              "--output-order",
              "column",
              "--kernel",
              "k",
              "--device",
              "cpu",
              "--accumulation-type",
              "s32",
              "--request-id",
              "id",
              "--priority",
              "low",
              "--deterministic",
              "--batch-invariant",
              "--fast-accumulation"},
             server.address());
  EXPECT_EQ(sent.c().type(), v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(sent.c().data().size(), 30u);
  EXPECT_EQ(sent.alpha(), 0.5);
  EXPECT_EQ(sent.beta(), 2);
  EXPECT_EQ(sent.bias().axis(), v1::BIAS_AXIS_ROWS);
  EXPECT_EQ(sent.activation(), v1::ACTIVATION_GELU_TANH);
  EXPECT_EQ(sent.d().type(), v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(sent.d().order(), v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(sent.accumulation_type(), v1::ELEMENT_TYPE_S32);
  EXPECT_EQ(sent.kernel(), "k");
  EXPECT_EQ(sent.device(), "cpu");
  EXPECT_EQ(sent.request_id(), "id");
  EXPECT_EQ(sent.priority(), v1::PRIORITY_LOW);
  EXPECT_TRUE(sent.require_deterministic());
  EXPECT_TRUE(sent.require_batch_invariant());
  EXPECT_TRUE(sent.fast_accumulation());
}

TEST_F(GemmctlMultiplyTest, AChipIsItsSimulator) {
  std::string device;
  FakeScript script = ComputingScript();
  script.multiply = [&, compute = script.multiply](grpc::CallbackServerContext& context,
                                                   const v1::MultiplyRequest& request,
                                                   v1::MultiplyResponse& response) {
    device = request.device();
    return compute(context, request, response);
  };
  const FakeServer server(script);
  const auto run = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"multiply", "--random", "2,2,2"});
    return RunGemmctl(flags, server.address());
  };
  EXPECT_EQ(run({"--chip", "sm_80"}).code, ExitCode::kOk);
  EXPECT_EQ(device, "sim:sm_80");
  EXPECT_EQ(run({"--chip", "sm_90", "--device", "sim:sm_90"}).code, ExitCode::kOk);
  EXPECT_EQ(device, "sim:sm_90");
  const Outcome both = run({"--chip", "sm_90", "--device", "cpu"});
  EXPECT_EQ(both.code, ExitCode::kUsage);
  EXPECT_THAT(both.err, HasSubstr("--chip: got sm_90 with --device cpu, want either"));
}

TEST_F(GemmctlMultiplyTest, OneMatrixServesABatch) {
  FakeScript script;
  v1::MultiplyRequest sent;
  script.multiply = [&](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                        v1::MultiplyResponse&) {
    sent = request;
    return grpc::Status(grpc::StatusCode::INTERNAL, "enough");
  };
  const FakeServer server(script);
  const std::string a = FloatFile("a.npy", {3, 2, 2}, std::vector<float>(12));
  const std::string b = FloatFile("b.npy", {2, 1}, {1, 1});
  EXPECT_EQ(RunGemmctl({"multiply", a, b}, server.address()).code, ExitCode::kRefused);
  EXPECT_EQ(sent.batch(), 3);
  EXPECT_FALSE(sent.a().has_batch_stride());
  EXPECT_TRUE(sent.b().has_batch_stride());
  EXPECT_EQ(sent.b().batch_stride(), 0);
  const Outcome wrong = RunGemmctl({"multiply", a, b, "--batch", "4"}, server.address());
  EXPECT_EQ(wrong.code, ExitCode::kUsage);
  EXPECT_EQ(wrong.err, "gemmctl: INVALID_ARGUMENT: a: got a batch of 3, want 4\n");
}

TEST_F(GemmctlMultiplyTest, SendsTheTraceThatItIsGiven) {
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  std::string sent;
  FakeScript script = ComputingScript();
  script.multiply = [&sent, compute = script.multiply](grpc::CallbackServerContext& context,
                                                       const v1::MultiplyRequest& request,
                                                       v1::MultiplyResponse& response) {
    const auto found = context.client_metadata().find("traceparent");
    sent = found == context.client_metadata().end()
               ? "none"
               : std::string(found->second.data(), found->second.size());
    return compute(context, request, response);
  };
  const FakeServer server(script);
  EXPECT_EQ(RunGemmctl({"multiply", "--random", "3,4,5"}, server.address()).code, ExitCode::kOk);
  EXPECT_EQ(sent, "none");
  const Outcome traced =
      RunGemmctl({"multiply", "--random", "3,4,5", "--traceparent", trace}, server.address());
  EXPECT_EQ(traced.code, ExitCode::kOk) << traced.err;
  EXPECT_EQ(sent, trace);
  for (const std::string& bad :
       {std::string("x"), trace + "0", "01" + trace.substr(2), "00-4BF9" + trace.substr(7)}) {
    const Outcome refused =
        RunGemmctl({"multiply", "--random", "3,4,5", "--traceparent", bad}, server.address());
    EXPECT_EQ(refused.code, ExitCode::kUsage) << bad;
    EXPECT_NE(refused.err.find("--traceparent: got " + bad), std::string::npos) << refused.err;
  }
}

}  // namespace
}  // namespace gemmd
