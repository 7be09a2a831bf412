// SPDX-License-Identifier: Apache-2.0
//
// Limits of simulated control groups, of version 1 and of version 2.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "server/system/resources.h"
#include "tests/testing/scratch_folder.h"

namespace gemmd {
namespace {

class ControlGroupTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = root_.Path(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void WriteGroups(const std::string& lines) { Write("proc/self/cgroup", lines); }
  // `group` is "" for the root group, or "/name".
  void WriteLimit(const std::string& group, const std::string& text) {
    Write("sys/fs/cgroup" + group + "/memory.max", text);
  }
  void WriteFirstVersionLimit(const std::string& group, const std::string& text) {
    Write("sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", text);
  }
  std::optional<int64_t> Limit() const { return ControlGroupMemoryLimit(root_.path()); }

  ScratchFolder root_;
};

TEST_F(ControlGroupTest, AServiceHasTheLimitOfItsOwnGroup) {
  WriteGroups("0::/system.slice/gemmd.service\n");
  WriteLimit("/system.slice", "max\n");
  WriteLimit("/system.slice/gemmd.service", "8589934592\n");
  WriteLimit("/system.slice/other.service", "1000\n");
  EXPECT_EQ(Limit(), int64_t{8} << 30);
}

TEST_F(ControlGroupTest, TheLeastLimitOnTheWayUpCounts) {
  WriteGroups("0::/a/b/c\n");
  WriteLimit("/a/b/c", "4000\n");
  WriteLimit("/a/b", "3000\n");
  EXPECT_EQ(Limit(), 3000);
  WriteLimit("/a", "2000\n");
  EXPECT_EQ(Limit(), 2000);
  WriteLimit("", "1000\n");
  EXPECT_EQ(Limit(), 1000);
  WriteLimit("/a/b/c", "500\n");
  EXPECT_EQ(Limit(), 500);
}

TEST_F(ControlGroupTest, AContainerHasTheLimitOfItsMount) {
  WriteLimit("", "1000\n");
  EXPECT_EQ(Limit(), 1000) << "without a list of groups";
  for (const char* lines : {"0::/\n", "0::/docker/not-below-the-mount\n"}) {
    WriteGroups(lines);
    EXPECT_EQ(Limit(), 1000) << lines;
  }
}

TEST_F(ControlGroupTest, FindsTheMemoryControllerOfTheFirstVersion) {
  WriteGroups(
      "5:cpu,cpuacct:/processors\n"
      "4:hugetlb,memory:/service/part:of it\n"
      "1:name=memory:/named\n"
      "0::/unified\n");
  WriteFirstVersionLimit("/processors", "1\n");
  WriteFirstVersionLimit("/named", "1\n");
  WriteFirstVersionLimit("/unified", "1\n");
  WriteFirstVersionLimit("", "9223372036854771712\n");
  EXPECT_EQ(Limit(), std::nullopt);
  WriteFirstVersionLimit("/service", "3000\n");
  EXPECT_EQ(Limit(), 3000);
  WriteFirstVersionLimit("/service/part:of it", "2000\n");
  EXPECT_EQ(Limit(), 2000);
  WriteGroups("4:memory:/docker/not-below-the-mount\n");
  WriteFirstVersionLimit("", "4000\n");
  EXPECT_EQ(Limit(), 4000);
}

TEST_F(ControlGroupTest, NoPathLeavesTheFolderOfAllGroups) {
  Write("sys/fs/memory.max", "1\n");
  Write("sys/memory.max", "1\n");
  Write("sys/fs/cgroup/memory.limit_in_bytes", "1\n");
  WriteLimit("/a", "1\n");
  WriteLimit("", "1000\n");
  WriteFirstVersionLimit("", "1000\n");
  for (const char* lines : {"0::/..\n", "0::/../..\n", "0::/a/../..\n", "4:memory:/..\n", "0::..\n",
                            "0::a\n", "0::\n"}) {
    WriteGroups(lines);
    EXPECT_EQ(Limit(), 1000) << lines;
  }
  WriteGroups("0::/a..b/...\n");
  WriteLimit("/a..b/...", "900\n");
  EXPECT_EQ(Limit(), 900);
}

TEST_F(ControlGroupTest, WhatIsNoNumberOfBytesIsNoLimit) {
  WriteGroups("0::/a\n");
  EXPECT_EQ(Limit(), std::nullopt) << "without files";
  for (const char* text :
       {"max\n", "", "\n", " \n", "0\n", "-4096\n", "9223372036854771712\n",
        "9223372036854775807\n", "9223372036854775808\n", "123456789012345678901234567890\n",
        "4096 B\n", "4k\n", "0x1000\n", "garbage\n"}) {
    WriteLimit("/a", text);
    WriteFirstVersionLimit("", text);
    EXPECT_EQ(Limit(), std::nullopt) << text;
  }
  WriteLimit("", "1000");
  EXPECT_EQ(Limit(), 1000) << "without the end of the line";
}

TEST_F(ControlGroupTest, WhatCannotBeReadIsSkipped) {
  WriteGroups("garbage\n0:\n:\n\n::\n0::/a/b\n");
  std::filesystem::create_directories(root_.Path("sys/fs/cgroup/a/b/memory.max"));
  WriteLimit("/a", "1000\n");
  EXPECT_EQ(Limit(), 1000);
  EXPECT_EQ(ControlGroupMemoryLimit(root_.Path("missing")), std::nullopt);
}

}  // namespace
}  // namespace gemmd
