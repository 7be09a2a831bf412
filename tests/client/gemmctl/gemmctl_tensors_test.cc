// SPDX-License-Identifier: Apache-2.0
//
// gemmctl: tensors that stay on the server, and the session that its processes share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/gemmctl/tensor_session.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/tensors.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_tensors.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class GemmctlTensorsTest : public testing::Test {
 protected:
  Outcome Run(const std::vector<std::string>& arguments) {
    return RunGemmctl(arguments, server_.address(), "", folder_.Path("gemmd"));
  }

  std::string Random(const std::string& name, const std::string& shape,
                     const std::string& type = "f32") {
    const std::string path = folder_.Path(name);
    const Outcome run = Run({"random", shape, "--type", type, "-o", path});
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

TEST_F(GemmctlTensorsTest, WhatIsPutComesBack) {
  for (const char* type : {"f32", "bf16", "e4m3", "s4", "b1"}) {
    const std::string a = Random("a.npy", "3,5,7", type);
    const Outcome put = Run({"put", a, "--name", "a", "--type", type, "--known"});
    ASSERT_EQ(put.code, ExitCode::kOk) << put.err;
    EXPECT_THAT(put.out, HasSubstr("3 of 5 x 7"));
    const Outcome get = Run({"get", "a", folder_.Path("b.npy")});
    ASSERT_EQ(get.code, ExitCode::kOk) << get.err;
    EXPECT_EQ(Contents(folder_.Path("b.npy")), Contents(a)) << type;
    EXPECT_EQ(Run({"get", "@a", "-"}).out, Contents(a)) << type;
  }
  // One name, one tensor.
  const Outcome list = Run({"ls", "--json"});
  ASSERT_EQ(list.code, ExitCode::kOk);
  const auto json = nlohmann::json::parse(list.out);
  ASSERT_THAT(json["tensors"], SizeIs(1));
  EXPECT_THAT(json["tensors"][0]["handle"].get<std::string>(), SizeIs(32));
  EXPECT_TRUE(json["tensors"][0]["pinned"].get<bool>());
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("3 of 5 x 7 b1"));
}

TEST_F(GemmctlTensorsTest, ProcessesShareASession) {
  const std::string a = Random("a.npy", "2,3");
  EXPECT_EQ(Run({"ls"}).code, ExitCode::kUsage);
  EXPECT_THAT(Run({"ls"}).err, HasSubstr("`gemmctl put` opens one"));
  ASSERT_EQ(Run({"put", a, "--name", "a"}).code, ExitCode::kOk);
  ASSERT_EQ(Run({"put", a, "--name", "b", "--lease", "5m"}).code, ExitCode::kOk);
  EXPECT_EQ(server_.sessions_opened(), 2);
  ASSERT_THAT(Sessions(), SizeIs(1));
  struct stat facts = {};
  ASSERT_EQ(stat(Sessions()[0].c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_EQ(Contents(Sessions()[0]), "token1\n");
  EXPECT_FALSE(server_.begun()[1].keep().pinned());
  EXPECT_EQ(server_.begun()[1].keep().lease_ns(), 300'000'000'000);
  // A file that others can write could contain another user's session.
  chmod(Sessions()[0].c_str(), 0644);
  EXPECT_THAT(Run({"ls"}).err, HasSubstr("want one of mode 0600"));
  EXPECT_EQ(Run({"ls"}).code, ExitCode::kUsage);
  chmod(Sessions()[0].c_str(), 0600);
  // So could one in a folder of others, or behind a link made by others.
  chmod(folder_.Path("gemmd").c_str(), 0777);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"ls"}, {"put", a}}) {
    EXPECT_THAT(Run(command).err, HasSubstr("want a folder of mode 0700"));
    EXPECT_EQ(Run(command).code, ExitCode::kUsage);
  }
  chmod(folder_.Path("gemmd").c_str(), 0700);
  std::filesystem::rename(folder_.Path("gemmd"), folder_.Path("elsewhere"));
  std::filesystem::create_directory_symlink(folder_.Path("elsewhere"), folder_.Path("gemmd"));
  EXPECT_THAT(Run({"ls"}).err, HasSubstr("want a folder of mode 0700"));
  std::filesystem::remove(folder_.Path("gemmd"));
  std::filesystem::rename(folder_.Path("elsewhere"), folder_.Path("gemmd"));
  EXPECT_EQ(Run({"ls", "--session", "token9"}).code, ExitCode::kRefused);
  EXPECT_EQ(Run({"ls", "--session", "token1"}).code, ExitCode::kOk);
}

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

TEST_F(GemmctlTensorsTest, WhatWasPutIsPutAgainInANewSession) {
  const std::string a = Random("a.npy", "2,3");
  const std::string b = Random("b.npy", "4,4", "bf16");
  ASSERT_EQ(Run({"put", a, "--name", "a"}).code, ExitCode::kOk);
  ASSERT_EQ(Run({"put", b, "--name", "b", "--type", "bf16", "--device", "cpu"}).code,
            ExitCode::kOk);
  ASSERT_EQ(Run({"put", a, "--name", "leased", "--lease", "5m"}).code, ExitCode::kOk);
  ASSERT_EQ(Run({"put", a}).code, ExitCode::kOk);
  struct stat facts = {};
  const auto kept = Kept();
  ASSERT_EQ(stat(kept.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  server_.Restart();

  const Outcome list = Run({"ls"});
  EXPECT_EQ(list.code, ExitCode::kOk);
  EXPECT_THAT(list.err, HasSubstr("lost the session; putting a again from " + a + "\n"));
  EXPECT_THAT(list.err, HasSubstr("putting b again from " + b + "\n"));
  auto begun = server_.begun();
  ASSERT_EQ(begun.size(), 6u);
  for (size_t i : {0u, 1u}) {
    v1::PutBegin again = begun[4 + i];
    EXPECT_THAT(again.sha256(), SizeIs(32));
    again.clear_sha256();
    EXPECT_EQ(again.SerializeAsString(), begun[i].SerializeAsString());
  }
  // A file that gemmctl has not written says so.
  const std::string puts = Contents(Kept());
  for (const char* bad : {"{", "[]", "{\"session\": 1}",
                          R"({"session": "", "server": 1, "tensors": {"a": {"path": 3}}})"}) {
    std::ofstream(kept) << bad;
    EXPECT_THAT(Run({"ls"}).err, HasSubstr(kept + ": got a file that gemmctl has not written"));
  }
  std::ofstream(kept) << puts;
  // Once is enough.
  EXPECT_EQ(Run({"ls"}).err, "");
  EXPECT_EQ(server_.begun().size(), 6u);

  // A newer time alone changes nothing.
  std::filesystem::last_write_time(a, std::filesystem::last_write_time(a) + std::chrono::hours(1));
  server_.Restart();
  EXPECT_EQ(Run({"get", "a", folder_.Path("c.npy")}).code, ExitCode::kOk);
  EXPECT_EQ(Contents(folder_.Path("c.npy")), Contents(a));
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

TEST_F(GemmctlTensorsTest, WhatWasRemovedReplacedOrUnpinnedIsNotPutAgain) {
  const std::string a = Random("a.npy", "4,8");
  const auto put = [&](const std::string& name) {
    ASSERT_EQ(Run({"put", a, "--name", name}).code, ExitCode::kOk);
    EXPECT_THAT(Contents(Kept()), HasSubstr("\"" + name + "\""));
  };
  const std::vector<std::vector<std::string>> commands = {
      {"rm", "w"},
      {"keep", "w", "--unpin"},
      {"put", a, "--name", "w", "--lease", "5m"},
      {"compress", "w", "--name", "w"},
      {"multiply", a, Random("b.npy", "8,8"), "--into", "@w"},
      {"multiply", a, folder_.Path("b.npy"), "--keep-result", "w"},
  };
  put("stays");
  for (const std::vector<std::string>& command : commands) {
    put("w");
    const Outcome run = Run(command);
    EXPECT_EQ(run.code, ExitCode::kOk) << run.err;
    EXPECT_THAT(Contents(Kept()), Not(HasSubstr("\"w\""))) << command[0];
    EXPECT_THAT(Contents(Kept()), HasSubstr("\"stays\""));
  }
  put("w");
  const auto handle = nlohmann::json::parse(Run({"put", a, "--name", "w", "--json"}).out)["handle"];
  EXPECT_EQ(Run({"rm", handle.get<std::string>()}).code, ExitCode::kOk);
  EXPECT_THAT(Contents(Kept()), Not(HasSubstr("\"w\"")));
}

TEST_F(GemmctlTensorsTest, WithoutAFolderTheTokenIsTold) {
  const std::string a = Random("a.npy", "2,3");
  const Outcome put = RunGemmctl({"put", a, "--name", "a"}, server_.address());
  EXPECT_EQ(put.code, ExitCode::kOk);
  EXPECT_THAT(put.err, HasSubstr("--session token1\n"));
}

TEST_F(GemmctlTensorsTest, ProductsNameTensorsAndLeaveResults) {
  const std::string a = Random("a.npy", "2,3");
  const std::string b = Random("b.npy", "3,4");
  ASSERT_EQ(Run({"put", b, "--name", "b"}).code, ExitCode::kOk);
  const Outcome kept = Run({"multiply", a, "@b", "--keep-result", "d", "--json"});
  ASSERT_EQ(kept.code, ExitCode::kOk) << kept.err;
  EXPECT_EQ(nlohmann::json::parse(kept.out)["tensor"]["name"], "d");
  ASSERT_EQ(Run({"multiply", a, "@b", "--c", "@d", "--beta", "1", "--keep-result", "e"}).code,
            ExitCode::kOk);
  const auto products = server_.products();
  ASSERT_EQ(products.size(), 2u);
  EXPECT_FALSE(products[0].a().data().empty());
  EXPECT_TRUE(products[0].b().has_tensor());
  EXPECT_TRUE(products[0].d().new_tensor().pinned());
  EXPECT_TRUE(products[1].c().has_tensor());
  EXPECT_EQ(products[1].n(), 4);
  // Shapes are checked before anything is sent.
  const Outcome wrong = Run({"multiply", b, "@b"});
  EXPECT_EQ(wrong.code, ExitCode::kUsage);
  EXPECT_THAT(wrong.err, HasSubstr("b: got 3 rows of op(B), want k = 4"));
  EXPECT_THAT(Run({"multiply", a, "@none"}).err, HasSubstr("@none: "));
  EXPECT_THAT(Run({"multiply", a, "@b", "--verify"}).err, HasSubstr("--verify: got tensors"));
  EXPECT_THAT(Run({"multiply", a, "@b", "--keep-result", "d", "--into", "@d"}).err,
              HasSubstr("want one of them"));
  EXPECT_THAT(Run({"multiply", a, "@b", "--b-type", "bf16"}).err, HasSubstr("want bf16"));
}

TEST_F(GemmctlTensorsTest, TensorsAreKeptCompressedAndRemoved) {
  ASSERT_EQ(Run({"put", Random("a.npy", "4,8"), "--name", "a"}).code, ExitCode::kOk);
  EXPECT_THAT(Run({"keep", "a", "--unpin", "--lease", "90"}).out, HasSubstr("kept    for"));
  EXPECT_EQ(Run({"keep", "a", "--unpin", "--pin"}).code, ExitCode::kUsage);
  EXPECT_EQ(Run({"keep", "a", "--lease", "soon"}).code, ExitCode::kUsage);
  EXPECT_THAT(Run({"compress", "a", "--name", "c"}).out, HasSubstr("4 x 8 f32 2:4"));
  EXPECT_EQ(Run({"rm", "a"}).code, ExitCode::kOk);
  const Outcome again = Run({"rm", "a"});
  EXPECT_EQ(again.code, ExitCode::kRefused);
  EXPECT_THAT(again.err, HasSubstr("NOT_FOUND"));
}

TEST_F(GemmctlTensorsTest, FilesThatAreNoMatricesAreNotPut) {
  EXPECT_EQ(Run({"put", folder_.Path("missing.npy")}).code, ExitCode::kUsage);
  std::ofstream(folder_.Path("text.npy")) << "text";
  EXPECT_EQ(Run({"put", folder_.Path("text.npy")}).code, ExitCode::kUsage);
  EXPECT_EQ(server_.sessions_opened(), 0);
}

TEST_F(GemmctlTensorsTest, LargeFilesAreNotRead) {
  const auto mapped = MappedNpy::Open(Random("a.npy", "2,3"), v1::ELEMENT_TYPE_UNSPECIFIED);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_TRUE(mapped->is_mapped());
  EXPECT_EQ(mapped->data().size(), 24u);
  const auto packed = MappedNpy::Open(Random("b.npy", "2,3", "s4"), v1::ELEMENT_TYPE_S4);
  ASSERT_THAT(packed, IsOk());
  EXPECT_FALSE(packed->is_mapped());
  EXPECT_EQ(packed->data().size(), 4u);
  // A truncated file is not an array.
  std::filesystem::resize_file(folder_.Path("a.npy"), 100);
  EXPECT_THAT(MappedNpy::Open(folder_.Path("a.npy"), v1::ELEMENT_TYPE_UNSPECIFIED),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemmd
