// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/system/log.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/scratch_folder.h"

namespace gemmd {
namespace {

using nlohmann::json;

constexpr int64_t kSecondNs = 1'000'000'000;

class AuditLogTest : public ::testing::Test {
 protected:
  void Begin(int64_t lines_per_second) {
    auto file = LogFile::Open(path_);
    ASSERT_TRUE(file.ok());
    sink_ = std::make_shared<AuditSink>(*std::move(file), lines_per_second, clock_);
    SetAuditLog(sink_);
  }

  void TearDown() override { SetAuditLog(nullptr); }

  static void Tell(int count) {
    for (int i = 0; i < count; ++i) AuditLog()->info("event=call identity=alice number={}", i);
  }

  std::vector<json> Lines() {
    sink_->Close(kPatience);
    std::vector<json> lines;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }

  ScratchFolder folder_;
  std::string path_ = folder_.path() + "/audit";
  FakeClock clock_;
  std::shared_ptr<AuditSink> sink_;
};

TEST_F(AuditLogTest, IsThereWhileItHasASink) {
  EXPECT_EQ(AuditLog(), nullptr);
  Begin(10);
  ASSERT_NE(AuditLog(), nullptr);
  Tell(1);
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["event"], "call");
  EXPECT_EQ(lines[0]["identity"], "alice");
  EXPECT_EQ(lines[0]["level"], "info");
  SetAuditLog(nullptr);
  EXPECT_EQ(AuditLog(), nullptr);
}

TEST_F(AuditLogTest, WritesSoManyLinesASecondAndSaysHowManyItLeftOut) {
  Begin(3);
  Tell(5);
  EXPECT_EQ(sink_->lost(), 2);
  clock_.Advance(kSecondNs - 1);
  Tell(1);
  EXPECT_EQ(sink_->lost(), 3);
  clock_.Advance(1);
  Tell(3);
  clock_.Advance(kSecondNs);
  Tell(1);
  EXPECT_EQ(sink_->lost(), 3);
  const std::vector<json> lines = Lines();
  std::vector<std::string> events;
  for (const json& line : lines) events.push_back(line["event"]);
  const std::vector<std::string> want = {"call", "call", "call", "audit_lines_lost",
                                         "call", "call", "call", "call"};
  EXPECT_EQ(events, want);
  EXPECT_EQ(lines[3]["lines"].dump(), "3");
}

// A full disk takes nothing, and says so in time with each line.
TEST_F(AuditLogTest, WhatADiskDoesNotTakeIsCountedAndToldInTheLog) {
  std::ostringstream log;
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "log", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  path_ = "/dev/full";
  Begin(10);
  Tell(5);
  EXPECT_EQ(sink_->lost(), 5);
  EXPECT_EQ(log.str(), "");
  clock_.Advance(kSecondNs);
  Tell(5);
  EXPECT_EQ(sink_->lost(), 10);
  EXPECT_THAT(log.str(), testing::EndsWith("event=audit_lines_lost lines=5\n"));
  Tell(5);
  EXPECT_THAT(log.str(), testing::EndsWith("event=audit_lines_lost lines=5\n"));
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace gemmd
