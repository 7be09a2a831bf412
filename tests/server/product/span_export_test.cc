// SPDX-License-Identifier: Apache-2.0
//
// Which products get spans, and what the spans contain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/product/product.h"
#include "server/product/spans.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/patience.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

class SpanExportTest : public testing::Test {
 protected:
  SpanExportTest() : device_("cuda:7", {}) {
    kernel_.name = "some_kernel";
    product_.job.kernel = &kernel_;
    product_.served = &served_;
    product_.job.problem.m = 2;
    product_.job.problem.n = 3;
    product_.job.problem.k = 4;
    product_.timing[Stage::kQueue] = 30;
    product_.timing[Stage::kCompute] = 50;
    product_.timing[Stage::kCopyOut] = 40;
    product_.timing.total_ns = 110;
  }

  // The contents of the file after products with these callers' spans have ended.
  std::vector<json> Written(const std::vector<std::optional<TraceSpan>>& spans, double share = 0) {
    {
      auto exported = SpanExport::Open({.file = folder_.Path("traces"), .share = share});
      EXPECT_TRUE(exported.ok()) << exported.status();
      for (const auto& span : spans) {
        product_.arrival.span = span;
        (*exported)->Add(product_);
      }
    }
    std::ifstream file(folder_.Path("traces"));
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }

  const ScratchFolder folder_;
  ScriptedDevice device_;
  const ServedDevice served_ = {&device_, absl::OkStatus()};
  Kernel kernel_;
  Product product_;
};

std::optional<TraceSpan> Caller(bool is_sampled) {
  const std::string flags = is_sampled ? "-01" : "-00";
  return ContinueTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7" + flags);
}

const json& SpansOf(const json& line) { return line["resourceSpans"][0]["scopeSpans"][0]["spans"]; }

TEST_F(SpanExportTest, CallersSayWhichProductsHaveSpans) {
  EXPECT_EQ(Written({Caller(true), Caller(false), std::nullopt, Caller(true)}).size(), 2U);
}

TEST_F(SpanExportTest, AShareOfTheOthersHasSpansToo) {
  EXPECT_EQ(Written({Caller(false), std::nullopt, std::nullopt}, 1).size(), 2U);
  std::filesystem::remove(folder_.Path("traces"));
  const std::vector<std::optional<TraceSpan>> many(4000);
  const size_t some = Written(many, 0.25).size();
  // Ten standard deviations of a binomial distribution on either side.
  EXPECT_GT(some, 1000U - 274U);
  EXPECT_LT(some, 1000U + 274U);
}

TEST_F(SpanExportTest, StagesFollowEachOtherWithinTheProduct) {
  const auto caller = Caller(true);
  product_.arrival.request_id = "mine";
  const std::vector<json> lines = Written({caller});
  ASSERT_EQ(lines.size(), 1U);
  const json& spans = SpansOf(lines[0]);
  ASSERT_EQ(spans.size(), 4U);
  const auto at = [](const json& span, const char* key) {
    return std::stoll(span[key].get<std::string>());
  };
  const int64_t start = at(spans[0], "startTimeUnixNano");
  EXPECT_EQ(at(spans[0], "endTimeUnixNano"), start + 110);
  EXPECT_EQ(spans[0]["parentSpanId"], caller->parent_id);
  EXPECT_EQ(spans[0]["spanId"], caller->span_id);
  EXPECT_FALSE(spans[0].contains("status"));
  // The last stage is cut off, because the stages together took longer than the whole.
  const std::vector<std::string> names = {"queue", "compute", "copy_out"};
  const std::vector<int64_t> starts = {0, 30, 80}, ends = {30, 80, 110};
  for (size_t i = 0; i < names.size(); ++i) {
    const json& stage = spans[i + 1];
    EXPECT_EQ(stage["name"], names[i]);
    EXPECT_EQ(stage["traceId"], caller->trace_id);
    EXPECT_EQ(stage["parentSpanId"], caller->span_id);
    EXPECT_EQ(at(stage, "startTimeUnixNano"), start + starts[i]);
    EXPECT_EQ(at(stage, "endTimeUnixNano"), start + ends[i]);
  }
  const std::string text = lines[0].dump();
  for (const char* told : {"some_kernel", "cuda:7", "mine", "\"gemmd\""}) {
    EXPECT_THAT(text, testing::HasSubstr(told));
  }
}

TEST_F(SpanExportTest, AFailureIsAnErrorOfTheSpan) {
  product_.outcome.status = absl::AbortedError("the \"worker\" ended\n\xff");
  const std::vector<json> lines = Written({Caller(true)});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(SpansOf(lines[0])[0]["status"]["code"], 2);
  EXPECT_THAT(lines[0].dump(), testing::HasSubstr("ABORTED"));
}

TEST_F(SpanExportTest, TheFileIsBoundedAndNothingIsLostOrCut) {
  constexpr int64_t kMaxBytes = 64 << 10;
  constexpr size_t kProducts = 120;
  {
    auto exported = SpanExport::Open({.file = folder_.Path("traces"), .max_bytes = kMaxBytes});
    ASSERT_TRUE(exported.ok()) << exported.status();
    for (size_t i = 0; i < kProducts; ++i) {
      product_.arrival.span = Caller(true);
      (*exported)->Add(product_);
    }
    ASSERT_TRUE(Eventually([&] { return (*exported)->counts().written >= 4 * 120; }));
    EXPECT_EQ((*exported)->counts().lost, 0);
  }
  size_t lines = 0;
  for (const char* name : {"traces.1", "traces"}) {
    EXPECT_LE(std::filesystem::file_size(folder_.Path(name)), static_cast<uint64_t>(kMaxBytes));
    std::ifstream file(folder_.Path(name));
    for (std::string line; std::getline(file, line); ++lines) {
      EXPECT_EQ(SpansOf(json::parse(line)).size(), 4U);
    }
  }
  EXPECT_GT(lines, 0U);
  EXPECT_LE(lines, kProducts);
}

TEST_F(SpanExportTest, ADiskThatTakesNothingCostsSpansAlone) {
  // The full file cannot be renamed.
  std::filesystem::create_directories(folder_.Path("traces.1") + "/occupied");
  auto exported = SpanExport::Open({.file = folder_.Path("traces"), .max_bytes = 4 << 10});
  ASSERT_TRUE(exported.ok()) << exported.status();
  constexpr int kProducts = 20;
  for (int i = 0; i < kProducts; ++i) {
    product_.arrival.span = Caller(true);
    (*exported)->Add(product_);
  }
  const auto ended = [&] { return (*exported)->counts().written + (*exported)->counts().lost; };
  ASSERT_TRUE(Eventually([&] { return ended() == 4 * kProducts; }));
  EXPECT_GT((*exported)->counts().written, 0);
  EXPECT_GT((*exported)->counts().lost, 0);
}

TEST_F(SpanExportTest, WithoutAFileThereIsNone) {
  EXPECT_EQ(SpanExport::Open({}).value(), nullptr);
  EXPECT_THAT(SpanExport::Open({.file = folder_.path()}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("traces: ")));
}

}  // namespace
}  // namespace gemmd
