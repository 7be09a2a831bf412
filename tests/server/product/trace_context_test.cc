// SPDX-License-Identifier: Apache-2.0
//
// W3C Trace Context: what is accepted as a parent, and what callers get back.
#include <gmock/gmock.h>
#include <grpcpp/version_info.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "server/product/spans.h"
#include "tests/server/wire/product_stream.h"
#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";
constexpr char kValid[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, ContinuesATrace) {
  const std::optional<TraceSpan> span = ContinueTrace(kValid);
  ASSERT_TRUE(span.has_value());
  EXPECT_EQ(span->trace_id, kTrace);
  EXPECT_EQ(span->parent_id, kParent);
  EXPECT_THAT(span->span_id, MatchesRegex("[0-9a-f]{16}"));
  EXPECT_NE(span->span_id, kParent);
  EXPECT_TRUE(span->is_sampled);
  EXPECT_EQ(span->traceparent(), std::string("00-") + kTrace + "-" + span->span_id + "-01");
}

TEST(TraceContextTest, KnowsOnlyTheFlagOfSampling) {
  const std::string start = std::string("00-") + kTrace + "-" + kParent;
  EXPECT_FALSE(ContinueTrace(start + "-00")->is_sampled);
  EXPECT_FALSE(ContinueTrace(start + "-fe")->is_sampled);
  EXPECT_TRUE(ContinueTrace(start + "-ff")->is_sampled);
  EXPECT_TRUE(ContinueTrace(start + "-ff")->traceparent().ends_with("-01"));
}

TEST(TraceContextTest, EachSpanHasANumberOfItsOwn) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(ContinueTrace(kValid)->span_id);
  EXPECT_EQ(ids.size(), 1000U);
}

TEST(TraceContextTest, AChildIsOfTheSameTraceUnderItsParent) {
  const TraceSpan parent = ContinueTrace(kValid).value();
  const TraceSpan child = ChildOf(parent).value();
  EXPECT_EQ(child.trace_id, kTrace);
  EXPECT_EQ(child.parent_id, parent.span_id);
  EXPECT_NE(child.span_id, parent.span_id);
  EXPECT_TRUE(child.is_sampled);
}

TEST(TraceContextTest, TakesTheKnownFieldsOfLaterVersions) {
  const std::string rest = std::string(kValid).substr(2);
  for (const std::string& later : {"01" + rest, "cc" + rest + "-more", "fe" + rest + "-"}) {
    const std::optional<TraceSpan> span = ContinueTrace(later);
    ASSERT_TRUE(span.has_value()) << later;
    EXPECT_EQ(span->trace_id, kTrace);
    EXPECT_TRUE(span->traceparent().starts_with("00-"));
  }
}

TEST(TraceContextTest, IgnoresWhatIsInvalid) {
  const std::string valid = kValid;
  const std::string rest = valid.substr(2);
  std::set<std::string> invalid = {
      "",
      "-",
      "ff" + rest,
      "0g" + rest,
      valid + "-more",
      valid + "0",
      "01" + rest + "more",
      " " + valid,
      valid + " ",
      std::string("00-00000000000000000000000000000000-") + kParent + "-01",
      std::string("00-") + kTrace + "-0000000000000000-01",
      std::string("00-") + kTrace + "-" + kParent + "-0x",
      std::string("00_") + kTrace + "-" + kParent + "-01",
      std::string("00-") + kTrace + "_" + kParent + "-01",
      std::string("00-") + kTrace + "-" + kParent + "_01",
  };
  std::string upper = valid;
  upper[4] = 'B';
  invalid.insert(upper);
  for (size_t size = 0; size < valid.size(); ++size) invalid.insert(valid.substr(0, size));
  for (const std::string& text : invalid) {
    EXPECT_FALSE(ContinueTrace(text).has_value()) << text;
  }
}

// The `traceparent` in the trailing metadata; empty if there is none.
std::string Returned(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("traceparent");
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

constexpr char kChild[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01";

TEST(TraceContextTest, IsReturnedWithAnAnswerAndWithARefusal) {
  RunningServer server(TestDevice::kCpu);
  for (const bool is_good : {true, false}) {
    grpc::ClientContext context;
    AllowTime(context);
    context.AddMetadata("traceparent", kValid);
    v1::MultiplyRequest request = IntegerRequest(3, 4, 5);
    if (!is_good) request.set_kernel("none");
    v1::MultiplyResponse response;
    EXPECT_EQ(server.gemm().Multiply(&context, request, &response).ok(), is_good);
    EXPECT_THAT(Returned(context), MatchesRegex(kChild));
  }
}

TEST(TraceContextTest, IsReturnedAtTheEndOfAStream) {
  RunningServer server(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  context.AddMetadata("traceparent", kValid);
  ClientStream stream(server.gemm(), &context);
  EXPECT_TRUE(stream.Write(IntegerRequest(3, 4, 5)));
  v1::MultiplyStreamAnswer answer;
  EXPECT_TRUE(stream.Read(&answer));
  stream.WritesDone();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_THAT(Returned(context), MatchesRegex(kChild));
}

// Operators need not log every product to find those that the daemon failed.
TEST(TraceContextTest, AFailureOfTheDaemonIsAWarningWithItsTrace) {
  RunningServer running(TestDevice::kFake);
  std::ostringstream log;
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  for (const absl::Status& end : {absl::OkStatus(), absl::AbortedError("the device was lost")}) {
    std::thread call([&] {
      grpc::ClientContext context;
      AllowTime(context);
      context.AddMetadata("traceparent", kValid);
      v1::MultiplyResponse response;
      EXPECT_EQ(running.gemm().Multiply(&context, IntegerRequest(3, 4, 5), &response).ok(),
                end.ok());
    });
    EXPECT_TRUE(running.fake().WaitForHeld(1, absl::Seconds(60)));
    running.fake().CompleteNext(end);
    call.join();
  }
  spdlog::set_default_logger(before);
  EXPECT_THAT(log.str(), HasSubstr("status=ABORTED reason=\"the device was lost\""));
  EXPECT_THAT(log.str(), HasSubstr(std::string("trace_id=") + kTrace));
  EXPECT_THAT(log.str(), Not(HasSubstr("status=OK")));
}

TEST(TraceContextTest, InvalidOrDoubleOnesChangeNothing) {
  RunningServer server(TestDevice::kCpu);
  for (const int count : {0, 1, 2}) {
    grpc::ClientContext context;
    AllowTime(context);
    if (count == 1) context.AddMetadata("traceparent", "00-nothing");
    for (int i = 0; count == 2 && i < 2; ++i) context.AddMetadata("traceparent", kValid);
    v1::MultiplyResponse response;
    EXPECT_TRUE(server.gemm().Multiply(&context, IntegerRequest(3, 4, 5), &response).ok());
    // If a call has several, gRPC since 1.56 shows the daemon only the last.
    const bool is_told_of_one = count == 2 && GRPC_CPP_VERSION_MINOR >= 56;
    EXPECT_THAT(Returned(context), MatchesRegex(is_told_of_one ? kChild : "")) << count;
  }
}

}  // namespace
}  // namespace gemmd
