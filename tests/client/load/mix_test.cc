// SPDX-License-Identifier: Apache-2.0
#include "client/load/mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "gemmd/v1/tensors.pb.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

TEST(MixTest, ParsesEveryKey) {
  const auto mix = ParseMix(R"([
    {"m": 1, "n": 2, "k": 3},
    {"name": "big", "m": 64, "n": 32, "k": 16, "batch": 4, "type": "bf16", "sparse": true, "b_order": "column",
     "accumulation_type": "f32", "output_type": "f16", "fast_accumulation": true, "kernel": "x", "device": "cpu", "operands": "resident", "weight": 2.5}
  ])");
  ASSERT_THAT(mix, IsOk());
  ASSERT_EQ(mix->size(), 2);
  EXPECT_EQ((*mix)[0].name, "1x2x3 f32");
  EXPECT_EQ((*mix)[0].weight, 1);
  EXPECT_EQ((*mix)[0].b_order, v1::ORDER_ROW_MAJOR);
  EXPECT_FALSE((*mix)[0].fast_accumulation);
  const LoadProduct& big = (*mix)[1];
  EXPECT_EQ(big.name, "big");
  EXPECT_EQ(big.m, 64);
  EXPECT_EQ(big.n, 32);
  EXPECT_EQ(big.k, 16);
  EXPECT_EQ(big.batch, 4);
  EXPECT_EQ(big.type, v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(big.accumulation_type, v1::ELEMENT_TYPE_F32);
  EXPECT_EQ(big.output_type, v1::ELEMENT_TYPE_F16);
  EXPECT_TRUE(big.fast_accumulation);
  EXPECT_TRUE(big.is_sparse);
  EXPECT_EQ(big.b_order, v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(big.kernel, "x");
  EXPECT_EQ(big.device, "cpu");
  EXPECT_EQ(big.weight, 2.5);
}

TEST(MixTest, NamesWhatIsWrong) {
  const auto refused = [](const char* json, const char* message) {
    EXPECT_THAT(ParseMix(json), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << json;
  };
  refused("", "mix: want a JSON array");
  refused("[]", "mix: want a JSON array");
  refused("[{\n\"m\": 1,\n]", "line 3, column 1");
  refused("[3]", "mix[0]: got 3, want an object");
  // The library would use the last of the two.
  refused(R"([{"m":1,"n":1,"k":1},{"m":1,"n":1,"m":2,"k":1}])",
          "[1].m: got it twice, want each name once");
  refused(R"([{"a":{"b":[0,{"c":1,"c":1}]}}])", "[0].a.b[1].c: got it twice");
  refused(R"([{"m":1e400,"n":1,"k":1}])", "number overflow");
  refused(R"([{"m":1,"n":1,"k":1,"weight":1e308},{"m":1,"n":1,"k":1,"weight":1e308}])",
          "weights without a sum");
  const size_t depth = 200'000;
  refused((std::string(depth, '[') + std::string(depth, ']')).c_str(),
          "mix[0]: got array, want an object");
  refused(R"([{"m":1,"n":1}])", "mix[0].k: got \"nothing\", want a size");
  refused(R"([{"m":1,"n":1,"k":0}])", "mix[0].k: got 0, want 1 to 2147483647");
  refused(R"([{"m":1.5,"n":1,"k":1}])", "mix[0].m: got 1.5");
  refused(R"([{"m":1,"n":1,"k":1},{"m":1,"n":1,"k":1,"type":"f33"}])", "mix[1].type: got \"f33\"");
  refused(R"([{"m":1,"n":1,"k":1,"weight":0}])", "mix[0].weight: got 0, want a number above 0");
  refused(R"([{"m":1,"n":1,"k":1,"sparse":1}])", "mix[0].sparse: got 1, want true or false");
  refused(R"([{"m":1,"n":1,"k":1,"fast_accumulation":"yes"}])",
          "mix[0].fast_accumulation: got \"yes\", want true or false");
  refused(R"([{"m":1,"n":1,"k":1,"b_order":"rows"}])",
          "mix[0].b_order: got \"rows\", want row or column");
  refused(R"([{"m":1,"n":1,"k":1,"colour":1}])", "mix[0].colour: got 1, want m, n, k");
}

TEST(MixTest, EveryProfileHasDistinctProducts) {
  ASSERT_GE(Profiles().size(), 5);
  for (const char* name : {"llm-decode", "llm-prefill", "small", "square", "sparse"}) {
    const auto mix = FindProfile(name);
    ASSERT_THAT(mix, IsOk());
    std::set<std::string> names;
    for (const LoadProduct& product : *mix) {
      names.insert(product.name);
      EXPECT_GT(product.weight, 0);
      EXPECT_GT(product.m * product.n * product.k, 0);
    }
    EXPECT_EQ(names.size(), mix->size()) << name;
  }
  EXPECT_THAT(FindProfile("huge"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("llm-decode")));
}

TEST(MixTest, NamesTellProductsApart) {
  LoadProduct product;
  product.m = 1;
  product.n = 2;
  product.k = 3;
  EXPECT_EQ(NameOf(product), "1x2x3 f32");
  product.accumulation_type = v1::ELEMENT_TYPE_F16;
  product.output_type = v1::ELEMENT_TYPE_BF16;
  product.kernel = "x";
  product.device = "cpu";
  EXPECT_EQ(NameOf(product), "1x2x3 f32 in f16 to bf16 x on cpu");
  Mix mix(5);
  const char* const given[] = {"a", "b", "a", "a #2", "a"};
  for (size_t i = 0; i < mix.size(); ++i) mix[i].name = given[i];
  MakeNamesUnique(mix);
  std::set<std::string> names;
  for (const LoadProduct& one : mix) names.insert(one.name);
  EXPECT_EQ(names.size(), mix.size());
  EXPECT_EQ(mix[0].name, "a");
  EXPECT_EQ(mix[2].name, "a #2");
}

TEST(MixPickerTest, PicksByWeightAndSeed) {
  Mix mix(3);
  mix[0].weight = 5;
  mix[1].weight = 1;
  mix[2].weight = 4;
  const MixPicker picker(mix, 7);
  const MixPicker other(mix, 8);
  constexpr uint64_t kCalls = 100000;
  std::vector<double> counts(3);
  int differ = 0;
  for (uint64_t call = 0; call < kCalls; ++call) {
    ++counts[picker.Pick(call)];
    differ += picker.Pick(call) != other.Pick(call);
    ASSERT_EQ(picker.Pick(call), MixPicker(mix, 7).Pick(call));
  }
  for (size_t i = 0; i < 3; ++i) {
    const double share = mix[i].weight / 10;
    // Five standard errors.
    EXPECT_LE(std::fabs(counts[i] / kCalls - share), 5 * std::sqrt(share * (1 - share) / kCalls));
  }
  EXPECT_GT(differ, kCalls / 4);
}

}  // namespace
}  // namespace gemmd
