// SPDX-License-Identifier: Apache-2.0
//
// Progress lines on a terminal that this program creates.
#include "client/terminal/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace gemmd {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

TEST(ProgressTest, TellsRateAndTimeLeft) {
  EXPECT_EQ(ProgressText("put w.npy", {.bytes_done = int64_t{1} << 30,
                                       .bytes_total = int64_t{4} << 30,
                                       .elapsed = absl::Seconds(2)}),
            "put w.npy  [##        ]   25 %  1.00 GiB of 4.00 GiB  512 MiB/s  6.00 s left");
  EXPECT_EQ(ProgressText("put", {.bytes_done = 0, .bytes_total = 0, .elapsed = {}}),
            "put  [##########]  100 %  0 B of 0 B  0 B/s  waiting for the server");
  EXPECT_EQ(ProgressText("multiply", {.bytes_done = int64_t{1} << 30,
                                      .bytes_total = int64_t{1} << 30,
                                      .elapsed = absl::Seconds(2)}),
            "multiply  [##########]  100 %  1.00 GiB of 1.00 GiB  512 MiB/s  waiting for the "
            "server");
}

TEST(ProgressTest, IsSilentWhereThereIsNoTerminal) {
  std::FILE* const file = std::tmpfile();
  {
    ProgressLine line(file, "put");
    line.Show({.bytes_done = 1, .bytes_total = 2, .elapsed = absl::Seconds(5)});
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

TEST(CallProgressTest, TellsCallsAndTheTimeThatTheyTook) {
  EXPECT_EQ(CallsText("multiply", {.done = 0, .total = 1, .elapsed = absl::Seconds(4)}),
            "multiply  [          ]  call 1 of 1  4.00 s");
  EXPECT_EQ(CallsText("multiply", {.done = 4, .total = 10, .elapsed = absl::Seconds(8)}),
            "multiply  [####      ]  call 5 of 10  8.00 s  12.0 s left");
  EXPECT_EQ(CallsText("multiply", {.done = 2, .total = 2, .elapsed = absl::Seconds(8)}),
            "multiply  [##########]  call 2 of 2  8.00 s");
}

// No output is expected while the first call runs.
TEST(CallProgressTest, IsWrittenByItself) {
  int own = -1;
  int terminal = -1;
  ASSERT_EQ(openpty(&own, &terminal, nullptr, nullptr, nullptr), 0);
  std::FILE* const file = fdopen(terminal, "w");
  std::string seen;
  const auto read_until = [&](const std::string& text) {
    while (seen.find(text) == std::string::npos) {
      char bytes[256];
      const ssize_t count = read(own, bytes, sizeof(bytes));
      ASSERT_GT(count, 0);
      seen.append(bytes, static_cast<size_t>(count));
    }
  };
  {
    CallProgress progress(file, "multiply", 3);
    read_until("call 1 of 3");
    progress.EndCall();
    read_until("call 2 of 3");
  }
  const size_t shown = seen.rfind("call 2 of 3");
  read_until("left\r\x1b[K");
  EXPECT_THAT(seen.substr(shown), EndsWith("\r\x1b[K"));
  EXPECT_THAT(seen, HasSubstr(" left"));
  std::fclose(file);
  close(own);
}

TEST(CallProgressTest, IsSilentWhereThereIsNoTerminal) {
  std::FILE* const file = std::tmpfile();
  { const CallProgress progress(file, "multiply", 1); }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace gemmd
