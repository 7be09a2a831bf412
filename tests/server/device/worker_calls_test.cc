// SPDX-License-Identifier: Apache-2.0
//
// Each call that a job makes to the GPU, failing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/system/clock.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/patience.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

struct ScriptedCall {
  std::string function;
  int call;  // The call's number among those of one job, from 1.
};

void PrintTo(const ScriptedCall& call, std::ostream* out) {
  *out << call.function << " " << call.call;
}

// Every call that a job makes to the runtime. The product has gaps in D, and needs more memory than
// the canary.
class EveryCallTest : public testing::TestWithParam<ScriptedCall> {
 protected:
  EveryCallTest() {
    product_.problem().d.leading_dimension = 16384;
    product_.problem().d.batch_stride_bytes = 40 * 16384 * 4;
  }

  absl::Status RunWith(WorkerRig& rig, const std::string& action) {
    rig.SetScript(absl::StrCat(GetParam().function, " ", GetParam().call, " ", action));
    const absl::Status status = product_.Run(rig.device()).status;
    EXPECT_FALSE(rig.HasScript());
    return status;
  }

  // Little memory, so that the canary's block must be freed for the job. A job does not fail if
  // freeing memory fails.
  static WorkerDeviceOptions Options() {
    WorkerDeviceOptions options = QuickOptions();
    options.memory_limit_bytes = int64_t{4} << 20;
    return options;
  }

  static testing::Matcher<absl::Status> Fails(absl::StatusCode code) {
    if (GetParam().function == "Free") return IsOk();
    return StatusIs(code, HasSubstr(GetParam().function + ": scripted"));
  }

  SmallProduct product_{40, 20, 8};
};

TEST_P(EveryCallTest, WithoutMemoryIsResourceExhausted) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "memory"), Fails(absl::StatusCode::kResourceExhausted));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
  EXPECT_EQ(rig.readinesses().size(), 1u);
}

TEST_P(EveryCallTest, APassingErrorIsInternalAndTheWorkerLives) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "error"), Fails(absl::StatusCode::kInternal));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
}

// The caller may retry if nothing had been given to the GPU.
absl::StatusCode LostCode(const std::string& function) {
  return function == "Free" || function == "Allocate" ? absl::StatusCode::kUnavailable
                                                      : absl::StatusCode::kAborted;
}

TEST_P(EveryCallTest, ALostGpuIsReplaced) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "lost"),
              StatusIs(LostCode(GetParam().function),
                       AllOf(HasSubstr("device: cuda:0 was lost"), HasSubstr(": scripted"))));
  ExpectRestarted(rig, pid);
}

TEST_P(EveryCallTest, ACrashIsReplaced) {
  WorkerRig rig(Options());
  const pid_t pid = rig.device().worker_pid();
  EXPECT_THAT(RunWith(rig, "exit"),
              StatusIs(LostCode(GetParam().function),
                       AllOf(HasSubstr("device: cuda:0 was lost"), HasSubstr("(exit code 1)"))));
  ExpectRestarted(rig, pid);
}

// With sanitizers, one call of each kind: before the job begins, while it runs, and after.
std::vector<ScriptedCall> Calls() {
  if (kIsSanitized) return {{"Allocate", 1}, {"Launch", 1}, {"NanosecondsBetween", 3}};
  return {{"Free", 1},
          {"Allocate", 1},
          {"Mark", 1},
          {"CopyIn", 1},
          {"Clear", 1},
          {"Mark", 2},
          {"Launch", 1},
          {"Mark", 3},
          {"CopyOut", 1},
          {"Mark", 4},
          {"IsReached", 1},
          {"NanosecondsBetween", 1},
          {"NanosecondsBetween", 2},
          {"NanosecondsBetween", 3}};
}

INSTANTIATE_TEST_SUITE_P(Job, EveryCallTest, testing::ValuesIn(Calls()), [](const auto& call) {
  return absl::StrCat(call.param.function, call.param.call);
});

}  // namespace
}  // namespace gemmd
