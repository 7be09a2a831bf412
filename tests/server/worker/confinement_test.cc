// SPDX-License-Identifier: Apache-2.0
//
// What a worker is denied once it has its GPU, tried by a worker of the tests.
#include "server/worker/confinement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

#include "absl/strings/str_split.h"
#include "server/device/worker_process.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Pair;
using testing::StartsWith;

// The rights that a worker reports while it has a job; it continues to work afterwards.
std::map<std::string, std::string> RightsOf(WorkerRig& rig) {
  rig.SetScript("Launch 1 rights");
  SmallProduct product(8, 8, 8);
  const absl::Status status = product.Run(rig.device()).status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal));
  std::map<std::string, std::string> rights;
  for (const auto word : absl::StrSplit(status.message(), ' ')) {
    const std::pair<std::string, std::string> right = absl::StrSplit(word, absl::MaxSplits('=', 1));
    rights.insert(right);
  }
  ExpectRightProduct(rig);
  return rights;
}

TEST(ConfinementTest, AWorkerHasNoRightsThatAGpuDoesNotNeed) {
  WorkerRig rig;
  const DeviceInfo& info = rig.device().info();
  EXPECT_TRUE(info.is_confined);
  EXPECT_THAT(info.confinement, HasSubstr("seccomp"));
  const std::map<std::string, std::string> rights = RightsOf(rig);
  EXPECT_THAT(
      rights,
      IsSupersetOf({Pair("inet", "EPERM"), Pair("inet6", "EPERM"), Pair("netlink", "EPERM"),
                    Pair("exec", "EPERM"), Pair("exec_in_thread", "EPERM"), Pair("vm", "EPERM"),
                    Pair("mount", "EPERM"), Pair("unshare", "EPERM"), Pair("bpf", "EPERM"),
                    Pair("uring", "EPERM"), Pair("privileges", "kept"), Pair("dumpable", "0")}));
  // Rights that a driver needs.
  EXPECT_THAT(rights, IsSupersetOf({Pair("unix", "OK"), Pair("read", "OK"), Pair("device", "OK")}));
#if !defined(__SANITIZE_ADDRESS__)  // LeakSanitizer needs it.
  EXPECT_THAT(rights, IsSupersetOf({Pair("ptrace", "EPERM")}));
#endif
}

TEST(ConfinementTest, WhereTheKernelHasLandlockAWorkerWritesNoFile) {
  WorkerRig rig;
  const DeviceInfo& info = rig.device().info();
  const std::map<std::string, std::string> rights = RightsOf(rig);
  if (info.unconfined.empty()) {
    EXPECT_THAT(info.confinement, StartsWith("landlock "));
    EXPECT_THAT(rights, IsSupersetOf({Pair("write", "EACCES")}));
  } else {
    EXPECT_THAT(info.unconfined, StartsWith("landlock: "));
    EXPECT_THAT(rights, IsSupersetOf({Pair("write", "OK")}));
  }
  // Up to version 5 it may signal others.
  int version = 0;
  const bool is_new =
      sscanf(info.confinement.c_str(), "landlock %d", &version) == 1 && version >= 6;
  EXPECT_THAT(rights, IsSupersetOf({Pair("signal", is_new ? "EPERM" : "OK")}));
}

TEST(ConfinementTest, AWorkerKeepsItsRightsWhereItIsAskedTo) {
  WorkerDeviceOptions options = QuickOptions();
  options.program.is_confined = false;
  WorkerRig rig(options);
  EXPECT_FALSE(rig.device().info().is_confined);
  EXPECT_THAT(rig.device().info().confinement, IsEmpty());
  EXPECT_THAT(RightsOf(rig),
              IsSupersetOf({Pair("inet", "OK"), Pair("exec", "ENOENT"), Pair("ptrace", "ESRCH"),
                            Pair("vm", "OK"), Pair("write", "OK"), Pair("signal", "OK"),
                            Pair("dumpable", "1")}));
}

TEST(ConfinementTest, AWorkerGetsTheVariablesOfTheGpuAlone) {
  std::array<std::string, 7> variables = {
      "CUDA_VISIBLE_DEVICES=1", "SECRET=CUDA_", "LD_LIBRARY_PATH=/x",
      "LD_LIBRARY_PATHS=/y",    "HOME=/root",   "NVIDIA_X=",
      "LD_PRELOAD=/z"};
  std::array<char*, 8> environment = {};
  for (size_t i = 0; i < variables.size(); ++i) environment[i] = variables[i].data();
  EXPECT_THAT(WorkerEnvironment(environment.data()),
              ElementsAre("CUDA_VISIBLE_DEVICES=1", "LD_LIBRARY_PATH=/x", "NVIDIA_X="));
}

}  // namespace
}  // namespace gemmd
