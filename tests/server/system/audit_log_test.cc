// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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

// One caller has half of a second's lines; a line of the next second has the number of the others.
TEST_F(AuditLogTest, WritesSoManyLinesASecondAndSumsTheOthers) {
  Begin(4);
  Tell(5);
  clock_.Advance(kSecondNs - 1);
  Tell(1);
  clock_.Advance(1);
  Tell(2);
  clock_.Advance(kSecondNs);
  Tell(1);
  EXPECT_EQ(sink_->lost(), 0);
  const std::vector<json> lines = Lines();
  std::vector<std::string> events;
  for (const json& line : lines) events.push_back(line["event"]);
  const std::vector<std::string> want = {"call", "call", "work_summed", "call", "call", "call"};
  EXPECT_EQ(events, want);
  EXPECT_EQ(lines[2]["caller"], "alice");
  EXPECT_EQ(lines[2]["lines"].dump(), "4");
}

class AuditedRefusalsTest : public AuditLogTest {
 protected:
  static void Refuse(int count, std::string_view peer, std::string_view status = "NOT_FOUND") {
    for (int i = 0; i < count; ++i) {
      AuditLog()->info("event=call identity=x peer={} method=/a/B status={}", LogValue(peer),
                       status);
    }
  }
  static void Do(int count) {
    for (int i = 0; i < count; ++i) {
      AuditLog()->info("event=product identity=x peer=ipv4:10.0.0.1:5 method=Multiply status=OK");
    }
  }
  // The number of lines of each event, and of calls with each status.
  std::map<std::string, int> Counts() {
    std::map<std::string, int> counts;
    lines_ = Lines();
    for (const json& line : lines_) {
      ++counts[line["event"] == "call" ? line["status"] : line["event"]];
    }
    return counts;
  }

  std::vector<json> lines_;
};

TEST_F(AuditedRefusalsTest, NeverTakeThePlaceOfWhatWasDone) {
  constexpr int kSeconds = 3;
  Begin(10);
  for (int second = 0; second < kSeconds; ++second) {
    for (int peer = 0; peer < 100; ++peer) {
      Refuse(150, absl::StrCat("ipv4:10.0.1.", peer, ":4711"));
    }
    Do(5);
    clock_.Advance(kSecondNs);
  }
  EXPECT_EQ(Counts()["product"], 5 * kSeconds);
}

TEST_F(AuditedRefusalsTest, AreSummedByTheirPeer) {
  Begin(1000);
  // Connections of one host are one peer.
  for (int port = 1; port <= 50; ++port) Refuse(1, absl::StrCat("ipv4:10.0.0.2:", port));
  Refuse(30, "unix:uid:7");
  AuditLog()->info("event=call_refused identity=eve method=/a/B reason=none");
  Do(1);
  EXPECT_EQ(sink_->lost(), 0);
  clock_.Advance(kSecondNs);
  Do(1);
  Refuse(1, "ipv4:10.0.0.2:9");
  std::map<std::string, int> counts = Counts();
  EXPECT_EQ(counts["product"], 2);
  EXPECT_EQ(counts["NOT_FOUND"], 10 + 10 + 1);
  EXPECT_EQ(counts["call_refused"], 1);
  std::map<std::string, int> sums;
  for (const json& line : lines_) {
    if (line["event"] == "refusals_summed") sums[line["peer"]] = line["calls"];
  }
  EXPECT_EQ(sums, (std::map<std::string, int>{{"ipv4:10.0.0.2", 40}, {"uid:7", 20}}));
}

// As everywhere else: a host may have all addresses of such a network.
TEST_F(AuditedRefusalsTest, OfANetworkOfIpv6AreThoseOfOnePeer) {
  Begin(1000);
  for (int host = 1; host <= 50; ++host) {
    Refuse(1, absl::StrCat("ipv6:%5B2001:db8:1:2:3:4:5:", absl::Hex(host), "%5D:4711"));
  }
  EXPECT_EQ(Counts()["NOT_FOUND"], 10);
  EXPECT_EQ(lines_.back()["peer"], "ipv6:%5B2001:db8:1:2");
  EXPECT_EQ(lines_.back()["calls"], 40);
}

TEST_F(AuditedRefusalsTest, ThatAreSummedLastAreToldAtTheEnd) {
  Begin(1000);
  Refuse(15, "unix:uid:7");
  EXPECT_EQ(Counts()["refusals_summed"], 1);
  EXPECT_EQ(lines_.back()["calls"], 5);
}

TEST_F(AuditedRefusalsTest, AreThoseForWhomNothingWasDone) {
  Begin(1);
  for (const char* status : {"OK", "CANCELLED", "DATA_LOSS"}) {
    Refuse(1, "ipv4:10.0.0.2:1", status);
    clock_.Advance(kSecondNs);
  }
  // One slot of each kind in each second.
  for (const char* status :
       {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED",
        "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "UNIMPLEMENTED", "UNAVAILABLE"}) {
    Refuse(1, "ipv4:10.0.0.2:1", status);
    Do(1);
    clock_.Advance(kSecondNs);
  }
  std::map<std::string, int> counts = Counts();
  EXPECT_EQ(counts["product"], 8);
  EXPECT_EQ(counts.size(), 3 + 8 + 1u);
}

// If the disk is full, each line reports its failure in time. An admitted product may have run,
// however it ended.
TEST_F(AuditedRefusalsTest, AreNoProductsThatWereLetIn) {
  Begin(1000);
  for (int i = 0; i < 100; ++i) {
    AuditLog()->info("event=product identity=x peer=ipv4:10.0.0.1:5 method=Multiply status={}",
                     "UNAVAILABLE");
  }
  EXPECT_EQ(Counts()["product"], 100);
}

// Whoever cancels products before they begin cannot hide work that was done.
TEST_F(AuditedRefusalsTest, AreProductsThatEndedBeforeTheyBegan) {
  Begin(10);
  for (int port = 1; port <= 100; ++port) {
    AuditLog()->info("event=product_dropped identity=x peer=ipv4:10.0.0.2:{} status=CANCELLED",
                     port);
  }
  Do(5);
  const std::map<std::string, int> counts = Counts();
  EXPECT_EQ(counts.at("product"), 5);
  EXPECT_EQ(counts.at("product_dropped"), 5);
  EXPECT_EQ(lines_.back()["calls"], 95);
}

class AuditedWorkTest : public AuditedRefusalsTest {
 protected:
  static void Work(int count, std::string_view identity, std::string_view peer) {
    for (int i = 0; i < count; ++i) {
      AuditLog()->info("event=product identity={} peer={} method=Multiply status=OK",
                       LogValue(identity), peer);
    }
  }
};

// The first of them takes half, the second half of the rest, and so on.
TEST_F(AuditedWorkTest, OfAFewCallersLeavesLinesToOthers) {
  Begin(1000);
  for (int caller = 0; caller < 5; ++caller) {
    Work(5000, absl::StrCat("busy-", caller), "ipv4:10.0.0.1:5");
  }
  AuditLog()->info("event=call identity=uid:0 peer=unix:uid:0 method=/a/DropSession status=OK");
  AuditLog()->info("event=call identity=uid:0 peer=unix:uid:0 method=/a/RestartDevice status=OK");
  const std::vector<json> lines = Lines();
  std::map<std::string, int> written;
  std::map<std::string, int> summed;
  for (const json& line : lines) {
    if (line["event"] == "work_summed") summed[line["caller"]] = line["lines"];
    if (line.contains("identity")) ++written[line["identity"]];
  }
  EXPECT_EQ(written, (std::map<std::string, int>{{"busy-0", 500},
                                                 {"busy-1", 250},
                                                 {"busy-2", 125},
                                                 {"busy-3", 63},
                                                 {"busy-4", 31},
                                                 {"uid:0", 2}}));
  for (const auto& [caller, lines_summed] : summed) {
    EXPECT_EQ(written[caller] + lines_summed, 5000) << caller;
  }
  EXPECT_EQ(summed.size(), 5u);
}

// A caller has one part from wherever it calls. Without rules, its host or user has one.
TEST_F(AuditedWorkTest, IsThatOfTheIdentityOrElseOfThePeer) {
  Begin(100);
  for (int port = 1; port <= 100; ++port) {
    Work(1, "batch", absl::StrCat("ipv4:10.0.", port, ".1:5"));
    Work(1, "", absl::StrCat("ipv4:10.0.0.1:", port));
  }
  std::map<std::string, int> summed;
  for (const json& line : Lines()) {
    if (line["event"] == "work_summed") summed[line["caller"]] = line["lines"];
  }
  EXPECT_EQ(summed, (std::map<std::string, int>{{"batch", 66}, {"ipv4:10.0.0.1", 67}}));
}

// However many callers there are, a second takes a bounded number of lines.
TEST_F(AuditedWorkTest, OfManyCallersIsSummedTogether) {
  Begin(100);
  for (int caller = 0; caller < 10'000; ++caller) {
    Work(1, absl::StrCat("caller-", caller), "ipv4:10.0.0.1:5");
  }
  int64_t written = 0;
  int64_t summed = 0;
  int sums = 0;
  for (const json& line : Lines()) {
    if (line["event"] == "product") ++written;
    if (line["event"] == "work_summed") {
      ++sums;
      summed += line["lines"].get<int64_t>();
    }
  }
  EXPECT_EQ(written, 100);
  EXPECT_EQ(written + summed, 10'000);
  EXPECT_LE(sums, 257);
}

std::vector<std::string> EventsIn(const std::string& path) {
  std::vector<std::string> events;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    events.push_back(json::parse(line)["event"]);
  }
  return events;
}

TEST_F(AuditLogTest, ContinuesInANewFileOnceTheOldOneWasRenamed) {
  Begin(1000);
  Tell(3);
  std::filesystem::rename(path_, path_ + ".1");
  Tell(2);
  sink_->Reopen();
  // The sink's thread opens the file when it can.
  ASSERT_TRUE(Eventually([this] { return std::filesystem::exists(path_); }));
  Tell(4);
  sink_->Close(kPatience);
  EXPECT_EQ(sink_->lost(), 0);
  EXPECT_EQ(EventsIn(path_ + ".1"), std::vector<std::string>(5, "call"));
  EXPECT_EQ(EventsIn(path_), std::vector<std::string>(4, "call"));
}

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
