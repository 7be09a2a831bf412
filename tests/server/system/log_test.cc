// SPDX-License-Identifier: Apache-2.0
#include "server/system/log.h"

#include <gtest/gtest.h>

#include <string>

namespace gemmd {
namespace {

TEST(LogValueTest, PlainWordsStayBare) {
  EXPECT_EQ(LogValue("cpu"), "cpu");
  EXPECT_EQ(LogValue("unix:/run/gemmd.sock"), "unix:/run/gemmd.sock");
}

TEST(LogValueTest, EverythingElseIsQuoted) {
  EXPECT_EQ(LogValue(""), "\"\"");
  EXPECT_EQ(LogValue("two words"), "\"two words\"");
  EXPECT_EQ(LogValue("a=b"), "\"a=b\"");
  EXPECT_EQ(LogValue("say \"hi\""), "\"say \\\"hi\\\"\"");
}

TEST(LogValueTest, ACallersTextCannotForgeALine) {
  const std::string logged = LogValue("x\nlevel=error event=forged");
  EXPECT_EQ(logged, "\"x\\nlevel=error event=forged\"");
  EXPECT_EQ(LogValue(std::string("\x1b[2J\0", 5)), "\"\\033[2J\\000\"");
}

}  // namespace
}  // namespace gemmd
