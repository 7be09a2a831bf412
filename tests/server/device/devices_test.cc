// SPDX-License-Identifier: Apache-2.0
//
// Devices made from their names.
#include "server/device/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(DevicesTest, KnowsTheNamesOfEachKind) {
  for (const char* name : {"cpu", "sim", "sim:sm_90", "sim:sm_70", "cuda", "cuda:0", "cuda:9999"}) {
    EXPECT_THAT(CheckDeviceName(name), IsOk()) << name;
  }
  for (const char* name : {"", "CPU", "cpu:0", "sim:", "sim:sm_1", "cuda:", "cuda:00", "cuda:-1",
                           "cuda:10000", "cuda:0x"}) {
    EXPECT_THAT(
        CheckDeviceName(name),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(StartsWith("devices: got " + std::string(name) + ", want cpu, sim:"),
                       HasSubstr("sim:sm_90, "), HasSubstr(", sim, cuda:0 and so on, or cuda"))))
        << name;
  }
}

TEST(DevicesTest, HelpNamesEachKind) {
  EXPECT_THAT(DeviceNamesHelp(),
              AllOf(HasSubstr("cpu"), HasSubstr("sim:sm_90"), HasSubstr("cuda:0")));
}

TEST(DevicesTest, MakesThemInTheOrderAskedFor) {
  DeviceOptions options;
  options.names = {"sim:sm_80", "sim:sm_90"};
  options.cpu_threads = 1;
  const auto devices = MakeDevices(options);
  ASSERT_THAT(devices, IsOk());
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[0]->info().name, "sim:sm_80");
  EXPECT_EQ((*devices)[1]->info().name, "sim:sm_90");
}

TEST(DevicesTest, RefusesWhatIsUnknownOrThereTwice) {
  DeviceOptions options;
  options.names = {"sim", "tpu"};
  EXPECT_THAT(MakeDevices(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got tpu, want")));
  options.names = {"sim", "sim:sm_90"};
  EXPECT_THAT(
      MakeDevices(options).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "devices: got sim:sm_90 twice, want it once"));
}

TEST(DevicesTest, SaysWhichDeviceDoesNotStart) {
  DeviceOptions options;
  options.names = {"sim:sm_90", "cuda:3"};
  options.cpu_threads = 1;
  options.worker_binary = "/no/worker";
  EXPECT_THAT(
      MakeDevices(options).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(StartsWith("device: cuda:3 does not start: worker-binary: got /no/worker"),
                     EndsWith(MissingDriver("/dev")))));
}

TEST(DevicesTest, SaysThatThereIsNoDriver) {
  const ScratchFolder folder;
  const std::string node = folder.Path("nvidiactl");
  EXPECT_THAT(MissingDriver(folder.path()),
              AllOf(StartsWith("no NVIDIA driver is loaded"), EndsWith("there is no " + node)));
  std::ofstream(node) << "";
  EXPECT_EQ(MissingDriver(folder.path()), "");
}

}  // namespace
}  // namespace gemmd
