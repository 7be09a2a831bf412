// SPDX-License-Identifier: Apache-2.0
//
// gemmctl: what becomes of tensors once their session or the server's memory is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/client/fake_tensors.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/testing/scratch_folder.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class GemmctlTensorsTest : public testing::Test {
 protected:
  Outcome Run(const std::vector<std::string>& arguments) {
    return RunGemmctl(arguments, server_.address(), "", folder_.Path("gemmd"));
  }

  std::string Random(const std::string& name, const std::string& shape) {
    const std::string path = folder_.Path(name);
    const Outcome run = Run({"random", shape, "-o", path});
    EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
    return path;
  }

  static std::string Contents(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  // The files with the tokens of sessions.
  std::vector<std::string> Sessions() const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.Path("gemmd"))) {
      if (entry.path().extension() == ".session") paths.push_back(entry.path());
    }
    return paths;
  }

  // The file that says what was put; empty if there is none.
  std::string Kept() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.Path("gemmd"))) {
      if (entry.path().extension() == ".tensors") return entry.path();
    }
    return "";
  }

  ScratchFolder folder_;
  FakeTensors server_;
};

TEST_F(GemmctlTensorsTest, ASessionThatHasEndedIsForgotten) {
  const std::string a = Random("a.npy", "2,3");
  ASSERT_EQ(Run({"put", a, "--name", "a"}).code, ExitCode::kOk);
  server_.BreakSessions(true);
  EXPECT_THAT(Run({"ls"}).err, HasSubstr("session: got none"));
  EXPECT_THAT(Sessions(), SizeIs(0));
  EXPECT_EQ(Kept(), "");
  EXPECT_EQ(Run({"put", a, "--name", "a"}).code, ExitCode::kOk);
  EXPECT_EQ(Run({"ls"}).code, ExitCode::kOk);
}

TEST_F(GemmctlTensorsTest, FilesThatHaveChangedAreNotPutAgain) {
  const std::string a = Random("a.npy", "2,3");
  const std::string before = Contents(a);
  ASSERT_EQ(Run({"put", a, "--name", "a"}).code, ExitCode::kOk);
  const auto fails = [&](const char* why) {
    server_.Restart();
    // Until the user decides.
    for (int i = 0; i < 2; ++i) {
      const Outcome list = Run({"ls"});
      EXPECT_EQ(list.code, ExitCode::kUsage);
      EXPECT_THAT(list.err, HasSubstr("a: " + a + " " + why));
      EXPECT_THAT(list.err, HasSubstr("`gemmctl rm a` gives it up"));
    }
  };
  std::ofstream(a) << before << "more";
  fails("has changed");
  std::string other = before;
  other.back() ^= 1;
  std::ofstream(a) << other;
  fails("has changed");
  std::ofstream(a) << before;
  EXPECT_EQ(Run({"ls"}).code, ExitCode::kOk);
  std::filesystem::remove(a);
  fails("is missing");
  EXPECT_EQ(Run({"rm", "a"}).code, ExitCode::kOk);
  EXPECT_THAT(Kept(), "");
}

TEST_F(GemmctlTensorsTest, WithoutAFolderTheTokenIsTold) {
  const std::string a = Random("a.npy", "2,3");
  const Outcome put = RunGemmctl({"put", a, "--name", "a"}, server_.address());
  EXPECT_EQ(put.code, ExitCode::kOk);
  EXPECT_THAT(put.err, HasSubstr("--session token1\n"));
}

}  // namespace
}  // namespace gemmd
