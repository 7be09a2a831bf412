// SPDX-License-Identifier: Apache-2.0
//
// The cut of a run into intervals.
#include "client/load/recorder.h"

#include <gtest/gtest.h>

#include <thread>

namespace gemmd {
namespace {

CallSample SampleEndedAt(int64_t ended_ns) {
  CallSample sample;
  sample.ended_ns = ended_ns;
  sample.code = absl::StatusCode::kOk;
  return sample;
}

TEST(RecorderTest, CallsBelongToTheIntervalInWhichTheyEndedHoweverLateItIsTaken) {
  Recorder recorder(0, 1000);
  recorder.SetIntervalEnd(100);
  recorder.Add(SampleEndedAt(99));
  recorder.Add(SampleEndedAt(100));
  std::thread([&] { recorder.Add(SampleEndedAt(150)); }).join();
  EXPECT_EQ(recorder.TakeInterval(200).ok(), 1);
  recorder.Add(SampleEndedAt(199));
  recorder.Add(SampleEndedAt(200));
  const IntervalTally second = recorder.TakeInterval(300);
  EXPECT_EQ(second.ok(), 3);
  EXPECT_EQ(second.latency.most_ns(), 199);
  EXPECT_EQ(recorder.TakeInterval(400).ok(), 1);
}

TEST(RecorderTest, TheRestHasEverythingThatIsLeft) {
  Recorder recorder(0, 1000);
  recorder.SetIntervalEnd(100);
  recorder.Add(SampleEndedAt(1));
  recorder.Add(SampleEndedAt(500));
  EXPECT_EQ(recorder.TakeRest().ok(), 2);
  EXPECT_EQ(recorder.TakeRest().ok(), 0);
}

TEST(RecorderTest, ARateIsMadeOfTheCallsThatEndedWellWithinTheWindow) {
  Recorder recorder(100, 200);
  recorder.Add(SampleEndedAt(99));
  EXPECT_EQ(recorder.EndedInWindow(), 0);
  recorder.Add(SampleEndedAt(100));  // Due in the warm-up, at 0.
  recorder.Add(SampleEndedAt(199));
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  recorder.Add(SampleEndedAt(200));
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  CallSample failed = SampleEndedAt(150);
  failed.code = absl::StatusCode::kUnavailable;
  recorder.Add(failed);
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  recorder.EndWindow(180);
  recorder.Add(SampleEndedAt(180));
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  recorder.Add(SampleEndedAt(179));
  EXPECT_EQ(recorder.EndedInWindow(), 3);
}

}  // namespace
}  // namespace gemmd
