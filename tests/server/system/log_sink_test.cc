// SPDX-License-Identifier: Apache-2.0
//
// A log whose reader reads, hangs, or has gone.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "server/system/log.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/timed.h"

namespace gemmd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A pipe or a socket, whose other end is read when a test says so.
class Reader {
 public:
  explicit Reader(bool is_socket) {
    std::array<int, 2> pair = {-1, -1};
    const int made = is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data())
                               : pipe2(pair.data(), O_CLOEXEC);
    EXPECT_EQ(made, 0);
    in_ = FileDescriptor(pair[1]);
    out_ = FileDescriptor(pair[0]);
    fcntl(out_.get(), F_SETFL, O_NONBLOCK);
  }

  int in() const { return in_.get(); }
  void Go() { FileDescriptor gone = std::move(out_); }

  // What is available now.
  std::string Read() const {
    std::string all;
    std::array<char, 4096> part;
    ssize_t bytes = 0;
    while ((bytes = read(out_.get(), part.data(), part.size())) > 0) {
      all.append(part.data(), static_cast<size_t>(bytes));
    }
    return all;
  }

 private:
  FileDescriptor in_;
  FileDescriptor out_;
};

// Far more than any pipe or socket buffers.
constexpr int kManyLines = 20'000;

class LogSinkTest : public ::testing::TestWithParam<bool> {
 protected:
  LogSinkTest() : reader_(GetParam()) { signal(SIGPIPE, SIG_IGN); }

  void Start(const LogSink::Options& options = {}) {
    sink_ = std::make_shared<LogSink>(LogFile::Of(reader_.in()), options, clock_);
    log_ = std::make_unique<spdlog::logger>("test", sink_);
    log_->set_level(spdlog::level::debug);
  }

  Reader reader_;
  FakeClock clock_;
  std::shared_ptr<LogSink> sink_;
  std::unique_ptr<spdlog::logger> log_;
};

TEST_P(LogSinkTest, LinesAreThereAtOnce) {
  Start();
  log_->info("event=first");
  EXPECT_THAT(reader_.Read(), EndsWith(" level=info event=first\n"));
  log_->debug("event=second x={}", 1);
  EXPECT_THAT(reader_.Read(), EndsWith(" level=debug event=second x=1\n"));
}

TEST_P(LogSinkTest, AReaderThatStandsStillHoldsUpNobody) {
  Start({.max_buffered_bytes = 10'000, .repeats = {}});
  for (int i = 0; i < kManyLines; ++i) log_->info("event=line number={}", i);
  const int64_t lost = sink_->counts().lost;
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, kManyLines);

  // After reading resumes, the buffered lines come, complete and in order, then the number of lost
  // lines.
  std::string all;
  while (all.find("log_lines_lost") == all.npos) {
    all += reader_.Read();
    log_->info("event=after");
  }
  EXPECT_EQ(all.rfind("event=line number=0\n") != all.npos, true);
  EXPECT_THAT(all, HasSubstr("level=warning event=log_lines_lost lines="));
  sink_->Close(kPatience);
}

TEST_P(LogSinkTest, LostLinesAreToldThoughNoLineFollows) {
  Start({.max_buffered_bytes = 10'000, .repeats = {}});
  for (int i = 0; i < kManyLines; ++i) log_->info("event=line number={}", i);
  const std::string told = absl::StrCat("event=log_lines_lost lines=", sink_->counts().lost, "\n");
  std::string all;
  EXPECT_TRUE(Eventually([&] {
    all += reader_.Read();
    return absl::StrContains(all, told);
  }));
  EXPECT_THAT(all, EndsWith(told));
}

TEST_P(LogSinkTest, AReaderThatHasGoneEndsNothing) {
  Start();
  reader_.Go();
  for (int i = 0; i < 1000; ++i) log_->info("event=line");
  EXPECT_EQ(sink_->counts().lost, 1000);
}

TEST_P(LogSinkTest, TheEndDoesNotWaitForAReaderThatStandsStill) {
  Start();
  for (int i = 0; i < kManyLines; ++i) log_->info("event=line number={}", i);
  const int64_t before = sink_->counts().lost;
  sink_->Close(absl::ZeroDuration());
  EXPECT_GT(sink_->counts().lost, before);  // The lines buffered until then.
}

TEST_P(LogSinkTest, RepeatedFailuresAreCounted) {
  Start({.max_buffered_bytes = 10'000, .repeats = {.lines = 10, .window_ns = 1000, .kinds = 8}});
  std::string all;
  for (int i = 0; i < 5000; ++i) {
    log_->warn("event=request id={} reason=\"device: cuda:0 is lost\"", i);
    all += reader_.Read();
  }
  log_->error("event=other");
  EXPECT_EQ(sink_->counts().suppressed, 4990);
  EXPECT_THAT(all, Not(HasSubstr("id=10 ")));
  clock_.Advance(1000);
  log_->warn("event=request id=last reason=\"device: cuda:0 is lost\"");
  EXPECT_THAT(reader_.Read(),
              HasSubstr("event=lines_suppressed of=request reason=\"device: cuda:0 is lost\" "
                        "suppressed=4990\n"));
}

TEST_P(LogSinkTest, TheEndTellsWhatWasLeftOut) {
  Start({.format = LogFormat::kJson,
         .max_buffered_bytes = 10'000,
         .repeats = {.lines = 1, .window_ns = 1000, .kinds = 8}});
  for (int i = 0; i < 3; ++i) log_->error("event=request");
  sink_->Close(kPatience);
  EXPECT_THAT(reader_.Read(), EndsWith("\"level\":\"warning\",\"event\":\"lines_suppressed\","
                                       "\"of\":\"request\",\"reason\":\"\",\"suppressed\":2}\n"));
}

TEST_P(LogSinkTest, LinesAfterTheEndAreWrittenAtOnceOrNotAtAll) {
  {
    const FakeClock gone;
    sink_ = std::make_shared<LogSink>(LogFile::Of(reader_.in()), LogSink::Options(), gone);
    sink_->Close(kPatience);
  }
  log_ = std::make_unique<spdlog::logger>("test", sink_);
  for (int i = 0; i < 20; ++i) log_->error("event=late number={}", i);
  EXPECT_THAT(reader_.Read(), HasSubstr("event=late number=19\n"));
  reader_.Go();
  log_->error("event=later");
  EXPECT_EQ(sink_->counts().lost, 1);
}

// A file on a disk whose writes block until the test says so.
class Disk {
 public:
  LogFile file() {
    return LogFile::Stalling([this](std::string_view text) -> std::optional<size_t> {
      if (!is_late_) is_late_ = !moves_.WaitForNotificationWithTimeout(kPatience);
      EXPECT_FALSE(is_late_);
      MutexLock lock(&mutex_);
      text_ += text;
      return text.size();
    });
  }
  void Move() { moves_.Notify(); }
  std::string text() {
    MutexLock lock(&mutex_);
    return text_;
  }

 private:
  absl::Notification moves_;
  std::atomic<bool> is_late_ = false;  // Waiting once is enough to be late.
  Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

TEST(LogToADiskTest, ADiskThatStandsStillHoldsUpNobody) {
  const SteadyClock clock;
  Disk disk;
  const auto sink = std::make_shared<LogSink>(
      disk.file(), LogSink::Options{.max_buffered_bytes = 10'000, .repeats = {}}, clock);
  spdlog::logger log("test", sink);
  constexpr int kLines = 10'000;
  for (int i = 0; i < kLines; ++i) log.info("event=line number={}", i);
  const int64_t lost = sink->counts().lost;
  EXPECT_GT(lost, kLines / 2);
  EXPECT_EQ(disk.text(), "");

  // After writing resumes, the buffered lines come, complete and in order.
  disk.Move();
  sink->Close(kPatience);
  const std::vector<std::string> lines = absl::StrSplit(disk.text(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), kLines - lost + 1);
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    EXPECT_THAT(lines[i], EndsWith(absl::StrCat(" level=info event=line number=", i)));
  }
  EXPECT_THAT(lines.back(), EndsWith(absl::StrCat("event=log_lines_lost lines=", lost)));
  EXPECT_EQ(sink->counts().lost, lost);
}

// Writes 100 lines to a working disk. Returns how many were there when the effect that followed
// them was visible.
int LinesSeenAtOnce() {
  const SteadyClock clock;
  Disk disk;
  disk.Move();
  const auto sink = std::make_shared<LogSink>(disk.file(), LogSink::Options(), clock);
  spdlog::logger log("test", sink);
  int seen = 0;
  for (int i = 0; i < 100; ++i) {
    log.info("event=line number={}", i);
    seen += absl::EndsWith(disk.text(), absl::StrCat(" number=", i, "\n")) ? 1 : 0;
  }
  sink->Close(kPatience);
  EXPECT_THAT(disk.text(), EndsWith(" number=99\n"));
  EXPECT_EQ(std::ranges::count(disk.text(), '\n'), 100);
  return seen;
}

// A disk that takes a part of a line, nothing for a while, and then all.
TEST(LogToADiskTest, WhatAFullDiskLosesIsToldWhenItHasRoom) {
  FakeClock clock;
  std::string text;
  std::atomic<int64_t> room = 100;
  const auto write = [&](std::string_view line) -> std::optional<size_t> {
    const auto taken =
        static_cast<size_t>(std::min<int64_t>(room, static_cast<int64_t>(line.size())));
    if (taken == 0) return std::nullopt;
    room -= static_cast<int64_t>(taken);
    text += line.substr(0, taken);
    return taken;
  };
  const auto sink = std::make_shared<LogSink>(LogFile::Stalling(write), LogSink::Options(), clock);
  spdlog::logger log("test", sink);
  constexpr int kLines = 10;
  for (int i = 0; i < kLines; ++i) log.info("event=line number={}", i);
  EXPECT_TRUE(Eventually([&] { return sink->counts().lost == kLines - 1; }));
  room = 1'000'000;
  log.info("event=last");
  sink->Close(kPatience);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 4) << text;
  EXPECT_THAT(lines[0], EndsWith("event=line number=0"));
  EXPECT_THAT(lines[1], ::testing::StartsWith("time="));  // The part for which there was room.
  EXPECT_THAT(lines[2], EndsWith(absl::StrCat("event=log_lines_lost lines=", kLines - 1)));
  EXPECT_THAT(lines[3], EndsWith("event=last"));
  EXPECT_EQ(sink->counts().lost, kLines - 1);
}

TEST(LogToADiskTest, EveryLineIsWrittenOnce) { LinesSeenAtOnce(); }

// All lines, except on a machine that has no time for the thread.
TEST(LogToADiskTimed, LinesAreThereWhereWhatFollowsThemIsSeen) {
  HoldsTimedAtLeast("lines on a disk where what follows them is seen", 50, LinesSeenAtOnce(),
                    "of 100 lines");
}

INSTANTIATE_TEST_SUITE_P(Readers, LogSinkTest, ::testing::Bool(),
                         [](const auto& is_socket) { return is_socket.param ? "Socket" : "Pipe"; });

}  // namespace
}  // namespace gemmd
