// SPDX-License-Identifier: Apache-2.0
//
// gemmctl multiply and explain: the request that the flags describe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/matrix/npy.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

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

TEST_F(GemmctlMultiplyTest, AsksTheServerToCheck) {
  v1::MultiplyRequest sent;
  const FakeServer server(KeepingScript(sent));
  RunGemmctl({"multiply", "--random", "2,2,2"}, server.address());
  EXPECT_FALSE(sent.has_verify());
  const auto verify = [&](const std::string& mode) {
    RunGemmctl({"multiply", "--random", "2,2,2", "--server-verify", mode}, server.address());
    return sent.verify();
  };
  EXPECT_EQ(verify("sampled:0.25").mode(), v1::VERIFY_MODE_SAMPLED);
  EXPECT_EQ(sent.verify().rate(), 0.25);
  EXPECT_EQ(verify("checksum").mode(), v1::VERIFY_MODE_CHECKSUM);
  EXPECT_EQ(verify("duplicate").mode(), v1::VERIFY_MODE_DUPLICATE);
  EXPECT_EQ(sent.verify().rate(), 0);
}

}  // namespace
}  // namespace gemmd
