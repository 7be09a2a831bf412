// SPDX-License-Identifier: Apache-2.0
#include "server/system/one_at_a_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "server/system/mutex.h"

namespace gemmd {
namespace {

using testing::ElementsAre;

// A call as gRPC has it: it must not be finished while a thread is about to start a read.
class Call {
 public:
  enum class Step : uint8_t { kRead, kFinish };

  void Cancel() {
    MutexLock lock(&mutex_);
    is_cancelled_ = true;
  }
  // `before_read` is called when a read was decided on, and did not start yet.
  template <typename BeforeRead>
  void Advance(const BeforeRead& before_read) {
    steps_.Run(
        mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Next(); },
        [&](Step step) {
          if (step == Step::kRead) before_read();
          MutexLock lock(&mutex_);
          done_.push_back(step);
        });
  }
  std::vector<Step> done() {
    MutexLock lock(&mutex_);
    return done_;
  }

 private:
  std::optional<Step> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_finished_) return std::nullopt;
    is_finished_ = is_cancelled_;
    if (is_cancelled_) return Step::kFinish;
    if (is_reading_) return std::nullopt;
    is_reading_ = true;
    return Step::kRead;
  }

  Mutex mutex_;
  OneAtATime steps_;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Step> done_ ABSL_GUARDED_BY(mutex_);
};

TEST(OneAtATimeTest, AStepWaitsForTheOneBefore) {
  Call call;
  std::vector<Call::Step> at_cancel;
  call.Advance([&] {
    std::thread other([&] {
      call.Cancel();
      call.Advance([] {});
      at_cancel = call.done();
    });
    other.join();
  });
  EXPECT_THAT(at_cancel, ElementsAre()) << "finished while a read was to start";
  EXPECT_THAT(call.done(), ElementsAre(Call::Step::kRead, Call::Step::kFinish));
  call.Advance([] {});
  EXPECT_THAT(call.done(), ElementsAre(Call::Step::kRead, Call::Step::kFinish));
}

TEST(OneAtATimeTest, AStepMayCauseTheNext) {
  Call call;
  call.Advance([&] {
    call.Cancel();
    call.Advance([] {});
    EXPECT_THAT(call.done(), ElementsAre());
  });
  EXPECT_THAT(call.done(), ElementsAre(Call::Step::kRead, Call::Step::kFinish));
}

}  // namespace
}  // namespace gemmd
