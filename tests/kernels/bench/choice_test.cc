// SPDX-License-Identifier: Apache-2.0
//
// What the options select: shapes, rows, orders, and all of them together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "kernels/bench/options.h"
#include "kernels/kernel.h"
#include "tests/kernels/bench/simulating_device.h"
#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(ShapesTest, ReadsCubesProductsAndTheSuite) {
  EXPECT_THAT(*ParseShapes("4096,8192x16x512"),
              ElementsAre(Shape{4096, 4096, 4096}, Shape{8192, 16, 512}));
  EXPECT_EQ(*ParseShapes("suite"), Suite());
  EXPECT_EQ(NameOf(Shape{1, 2, 3}), "1x2x3");
  EXPECT_EQ((Shape{2, 3, 5}).operations(), 60);
  EXPECT_THAT(*ParseShapes("64*512,3*8x16x32,1*4"),
              ElementsAre(Shape{512, 512, 512, 64}, Shape{8, 16, 32, 3}, Shape{4, 4, 4}));
  EXPECT_EQ(NameOf(Shape{1, 2, 3, 4}), "4*1x2x3");
  EXPECT_EQ((Shape{2, 3, 5, 7}).operations(), 420);
}

TEST(ShapesTest, TakesEachShapeOnce) {
  EXPECT_EQ(ParseShapes("suite,4096,suite")->size(), Suite().size());
  EXPECT_THAT(*ParseShapes("7,7x7x7"), ElementsAre(Shape{7, 7, 7}));
}

TEST(ShapesTest, RefusesWhatIsNoShape) {
  for (const char* text : {"", "x", "0", "-1", "4x4", "1x2x3x4", "4096,", "1e3", "suites",
                           "9223372036854775808", "4 ", "*4", "2*", "0*4", "2*2*4", "2*4x4"}) {
    EXPECT_THAT(ParseShapes(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--shapes: got ")))
        << text;
  }
}

TEST(RowsTest, PatternsMatchWholeNames) {
  EXPECT_TRUE(Matches("mma.*bf16*", "mma.m16n8k16.f32.bf16.bf16.f32_128x256x64_w2x4_s3"));
  EXPECT_FALSE(Matches("mma.*bf16", "mma.m16n8k16.f32.bf16.bf16.f32_128x256x64_w2x4_s3"));
  EXPECT_FALSE(Matches("ma.*", "mma.x"));
  EXPECT_TRUE(Matches("[mw]mma.?", "wmma.x"));
  EXPECT_FALSE(Matches("mma.*", "mmaXm16"));
}

TEST(RowsTest, ChoosesInTheCataloguesOrderAndEachOnce) {
  const absl::Span<const Kernel> catalog = Catalog(DeviceKind::kCuda);
  const std::string first(catalog[0].name);
  const std::string second(catalog[1].name);
  EXPECT_THAT(ChooseRows(catalog, {second, first, first}), ElementsAre(&catalog[0], &catalog[1]));
  EXPECT_THAT(ChooseRows(catalog, {"*"}), SizeIs(catalog.size()));
  EXPECT_THAT(ChooseRows(catalog, {"onednn.*"}), IsEmpty());
  EXPECT_THAT(IdlePatterns(catalog, {"mma.*", "onednn.*"}), ElementsAre("onednn.*"));
}

TEST(OrdersTest, ReadsListsAndAll) {
  EXPECT_THAT(*ParseOrders("rcr"), ElementsAre(Orders()));
  const Orders columns = {Order::kColumnMajor, Order::kColumnMajor, Order::kColumnMajor};
  EXPECT_THAT(*ParseOrders("ccc,rcr,ccc"), ElementsAre(columns, Orders()));
  std::set<std::string> names;
  for (const Orders& orders : AllOrders()) names.insert(NameOf(orders));
  EXPECT_THAT(names, SizeIs(8));
  for (const char* text : {"", "rc", "rcrr", "rcx", "rcr,", "RCR"}) {
    EXPECT_THAT(ParseOrders(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(EpilogueTest, HasABiasAnActivationOrBoth) {
  for (const char* text : {"bias", "relu", "gelu-erf", "gelu-tanh", "silu", "bias-gelu-tanh"}) {
    Output output;
    ASSERT_THAT(ParseEpilogue(text, output), IsOk());
    std::string name = NameOf(output);  // "bias gelu-tanh".
    std::replace(name.begin(), name.end(), ' ', '-');
    EXPECT_EQ(name, text);
  }
  Output output;
  ASSERT_THAT(ParseEpilogue("none", output), IsOk());
  EXPECT_EQ(output, Output());
  for (const char* text : {"", "biasrelu", "bias-", "bias-none", "relu-bias", "gelu", "Relu"}) {
    EXPECT_THAT(ParseEpilogue(text, output), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(ProblemTest, LeavesSpaceBetweenLines) {
  const Kernel& kernel = GpuRow("mma.m16n8k16.f32.bf16.bf16.f32");
  const Problem problem = *MakeProblem(kernel, {5, 6, 7}, Orders(), 3);
  EXPECT_EQ(problem.a.leading_dimension, 10);
  EXPECT_EQ(problem.b.leading_dimension, 10);
  EXPECT_EQ(problem.d.leading_dimension, 9);
  EXPECT_EQ(BytesOf(problem.d), 5 * 9 * 4);
  EXPECT_EQ(problem.d.type, ElementType::kF32);
}

TEST(ProblemTest, OfASparseAOnlyRows) {
  const Kernel& kernel = GpuRow("mma.sp.m16n8k32.f32.f16.f16.f32");
  EXPECT_TRUE(MakeProblem(kernel, {64, 64, 64}, Orders(), 0)->a.is_sparse());
  EXPECT_THAT(MakeProblem(kernel, {64, 64, 64}, {.a = Order::kColumnMajor}, 0),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("a.order")));
}

TEST(ProblemTest, CountsBitsAsTheInstructionDoes) {
  const Kernel& kernel = GpuRow("mma.m16n8k256.s32.b1.b1.s32.xor.popc");
  EXPECT_EQ(MakeProblem(kernel, {64, 64, 256}, Orders(), 0)->bit_operation, BitOperation::kXor);
}

absl::StatusOr<Options> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "gemmbench");
  CLI::App app;
  Options options;
  const absl::Status status =
      ParseOptions(static_cast<int>(arguments.size()), arguments.data(), app, options);
  if (!status.ok()) return status;
  return options;
}

TEST(OptionsTest, OfAGpu) {
  const Options options = *Parse({"--device", "cuda:3", "--filter", "mma.*bf16*,wmma.*", "--filter",
                                  "mma.sp.*", "--shapes", "64,1x2x3", "--orders", "rrr,rcc",
                                  "--leading-dimension-offset", "1", "--no-libraries"});
  EXPECT_EQ(options.gpu, 3);
  EXPECT_THAT(options.filters, ElementsAre("mma.*bf16*", "wmma.*", "mma.sp.*"));
  EXPECT_THAT(options.shapes, SizeIs(2));
  EXPECT_THAT(options.orders, SizeIs(2));
  EXPECT_EQ(options.leading_dimension_offset, 1);
  EXPECT_TRUE(options.leaves_libraries_out);
  EXPECT_EQ(options.command,
            "gemmbench --device cuda:3 --filter 'mma.*bf16*,wmma.*' --filter 'mma.sp.*' --shapes "
            "64,1x2x3 --orders rrr,rcc --leading-dimension-offset 1 --no-libraries");
}

TEST(OptionsTest, NumbersAreDecimal) {
  EXPECT_EQ(Parse({"--threads=010"})->threads, 10);
  for (const std::string text : {"0x10", "+5", "1e3", "0", "4097", "18446744073709551617"}) {
    try {
      Parse({("--threads=" + text).c_str()}).IgnoreError();
      ADD_FAILURE() << text;
    } catch (const CLI::ParseError& error) {
      EXPECT_EQ(std::string(error.what()),
                "--threads: got " + text + ", want a whole number from 1 to 4096");
    }
  }
}

// Each default pattern has rows.
TEST(OptionsTest, DefaultsChooseRows) {
  const std::pair<std::vector<const char*>, DeviceKind> cases[] = {
      {{}, DeviceKind::kCpu},
      {{"--chip", "sm_90"}, DeviceKind::kSim},
      {{"--device", "cuda:0"}, DeviceKind::kCuda}};
  for (const auto& [arguments, kind] : cases) {
    const Options options = *Parse(arguments);
    EXPECT_THAT(IdlePatterns(Catalog(kind), options.filters), IsEmpty());
    EXPECT_THAT(options.filters, testing::Not(IsEmpty()));
    EXPECT_THAT(options.shapes, SizeIs(1));
  }
  EXPECT_THAT(Parse({"--list"})->filters, ElementsAre("*"));
}

TEST(OptionsTest, RefusesWhatMeansNothing) {
  for (const char* device : {"gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "sim:sm_90"}) {
    EXPECT_THAT(Parse({"--device", device}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--device: got ")))
        << device;
  }
  EXPECT_THAT(Parse({"--device", "cuda:0", "--chip", "sm_90"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--chip")));
  EXPECT_THROW(Parse({"--chip", "sm_91"}).status().IgnoreError(), CLI::ParseError);
  EXPECT_THROW(Parse({"--seconds", "-1"}).status().IgnoreError(), CLI::ParseError);
  EXPECT_THROW(Parse({"--seconds", "nan"}).status().IgnoreError(), CLI::ParseError);
  EXPECT_THROW(Parse({"--alone", "nan"}).status().IgnoreError(), CLI::ParseError);
  EXPECT_THROW(Parse({"--host-launches", "-1"}).status().IgnoreError(), CLI::ParseError);
}

}  // namespace
}  // namespace gemmd::bench
