// SPDX-License-Identifier: Apache-2.0
//
// What a run prints, writes and returns.
#include "kernels/bench/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

constexpr Shape kRecorded = {2, 3, 4};

Entry Row(const std::string& kernel, bool is_right = true) {
  return {.kernel = kernel,
          .shape = kRecorded,
          .fields = {{"kernel", kernel}, {"m", kRecorded.m}},
          .cells = {kernel},
          .is_right = is_right};
}

class SessionTest : public testing::Test {
 protected:
  SessionTest() { std::filesystem::create_directories(folder_); }
  ~SessionTest() override { std::filesystem::remove_all(folder_); }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }
  std::string TextOf(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(PathOf(name)).rdbuf();
    return text.str();
  }

  // Everything that `use` makes a session write to standard output.
  template <typename Use>
  std::string OutputOf(const Use& use) {
    testing::internal::CaptureStdout();
    Session session(options_, {{"kernel", -8}}, {{"gpu", "none"}}, 2);
    use(session);
    return testing::internal::GetCapturedStdout();
  }

  Options options_;

 private:
  const std::string folder_ = testing::TempDir() + "session_test." +
                              testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(SessionTest, PrintsATableAndWritesEveryFile) {
  options_.json = PathOf("json");
  options_.save = PathOf("save");
  options_.csv = PathOf("csv");
  options_.command = "gemmbench --json json";
  const std::string output = OutputOf([&](Session& session) {
    EXPECT_TRUE(session.is_empty());
    session.Keep(Row("first"));
    EXPECT_THAT(session.WriteFiles(), IsOk());
    EXPECT_EQ(Json::parse(TextOf("save"))["measurements"].size(), 1U);
    session.Keep(Row("second"));
    EXPECT_THAT(session.End(), IsOk());
    EXPECT_TRUE(session.is_right());
    EXPECT_FALSE(session.is_empty());
  });
  EXPECT_EQ(output, "kernel  \nfirst   \nsecond  \n");
  const Json json = Json::parse(TextOf("json"));
  EXPECT_EQ(json["gpu"], "none");
  EXPECT_EQ(json["commit"], BuildCommit());
  EXPECT_EQ(json["command"], "gemmbench --json json");
  EXPECT_EQ(json["date"].get<std::string>().size(), 10U);
  EXPECT_EQ(json["measurements"][1]["kernel"], "second");
  EXPECT_EQ(TextOf("save"), TextOf("json"));
  EXPECT_EQ(TextOf("csv"), "kernel,m\nfirst,2\nsecond,2\n");
}

TEST_F(SessionTest, PrintsTheReportInPlaceOfTheTable) {
  options_.json = "-";
  const std::string output = OutputOf([&](Session& session) {
    session.Keep(Row("first"));
    EXPECT_THAT(session.End(), IsOk());
  });
  EXPECT_EQ(Json::parse(output)["measurements"][0]["kernel"], "first");
}

TEST_F(SessionTest, IsWrongAfterAWrongResultOrAFailure) {
  OutputOf([](Session& session) {
    session.Keep(Row("wrong", false));
    session.Keep(Row("right"));
    EXPECT_FALSE(session.is_right());
  });
  OutputOf([](Session& session) {
    session.Skip("skipped", kRecorded, absl::UnimplementedError("not such a product"));
    EXPECT_TRUE(session.is_right());
    EXPECT_TRUE(session.is_empty());
    session.Fail("failed", kRecorded, absl::InternalError("broken"));
    EXPECT_FALSE(session.is_right());
  });
}

TEST_F(SessionTest, SaysWhatItLeavesOutAndWhatRuns) {
  options_.shows_progress = true;
  testing::internal::CaptureStderr();
  OutputOf([](Session& session) {
    session.Begin("first", kRecorded);
    session.Skip("first", kRecorded, absl::UnimplementedError("not such a product"));
    session.Begin("second", kRecorded);
  });
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("1 of 2: first 2x3x4 ..."), HasSubstr("first 2x3x4: not such a product\n"),
            HasSubstr("2 of 2: second 2x3x4 ...")));
  options_.shows_progress = false;
  testing::internal::CaptureStderr();
  OutputOf([](Session& session) { session.Begin("first", kRecorded); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(SessionTest, RefusesFilesThatCannotBeWritten) {
  options_.csv = PathOf("no/such/folder");
  OutputOf([](Session& session) {
    EXPECT_THAT(session.End(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot write ")));
  });
}

}  // namespace
}  // namespace gemmd::bench
