// SPDX-License-Identifier: Apache-2.0
//
// A scheduler with two devices whose jobs end when a test says so.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/product/scheduler.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/test_kernel.h"

namespace gemmd {

class SchedulerTest : public ::testing::Test {
 protected:
  // Queues a job. Its end is recorded under `name`.
  JobId Submit(const std::string& name, ScriptedDevice& device, int64_t deadline_ns = kNoDeadlineNs,
               int64_t predicted_ns = 10) {
    auto owned = std::make_unique<Submission>();
    Submission& submission = *owned;
    submission.device = &device;
    submission.job = TestJob(&outputs_.emplace_back());
    submission.bytes = 100;
    submission.predicted_ns = predicted_ns;
    submission.deadline_ns = deadline_ns;
    submission.done = [this, name](std::unique_ptr<Submission> result) {
      ended_.push_back(name + " " + absl::StatusCodeToString(result->outcome.status.code()));
      last_ = std::move(result);
    };
    return scheduler_.Submit(std::move(owned));
  }

  // Ends all jobs before the members that record their ends are destroyed, even if a test fails.
  void TearDown() override {
    for (ScriptedDevice* const device : {&first_, &second_}) {
      while (device->held() > 0) device->CompleteNext();
    }
  }

  FakeClock clock_;
  std::deque<std::string> outputs_;
  ScriptedDevice first_{"first", {}};
  ScriptedDevice second_{"second", {}};
  std::vector<Device*> devices_ = {&first_, &second_};
  Scheduler scheduler_{devices_, clock_};
  std::vector<std::string> ended_;
  std::unique_ptr<Submission> last_;
};

}  // namespace gemmd
