// SPDX-License-Identifier: Apache-2.0
//
// Which jobs the scheduler runs as one, and how that ends for each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/product/scheduler.h"
#include "server/system/threads.h"
#include "tests/server/device/scripted_device.h"
#include "tests/server/product/joinable_product.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

DeviceProfile Simulated() { return {.target = SimulatedH100(), .rates = {}, .kernel_rates = {}}; }

class JoinedJobsTest : public testing::Test {
 protected:
  struct Answer {
    absl::Status status;
    std::vector<std::byte> d;
    int64_t joined = 0;
    const Kernel* kernel = nullptr;
    std::thread::id thread = {};
  };

  // The id is the index among the answers.
  JobId Submit(Scheduler& scheduler, JoinableProduct& product, int64_t deadline_ns = kNoDeadlineNs,
               std::string flow = "one", Priority priority = Priority::kNormal) {
    const size_t place = answers_.size();
    answers_.emplace_back();
    auto owned = std::make_unique<Submission>();
    Submission& submission = *owned;
    submission.device = target_;
    submission.job = product.job;
    submission.bytes = 100;
    submission.predicted_ns = 1000;
    submission.deadline_ns = deadline_ns;
    submission.caller = std::move(flow);
    submission.priority = priority;
    submission.done = [this, place](std::unique_ptr<Submission> result) {
      const absl::Span<const std::byte> d = result->outcome.d.bytes();
      answers_[place] = {.status = result->outcome.status,
                         .d = {d.begin(), d.end()},
                         .joined = result->joined,
                         .kernel = result->outcome.kernel,
                         .thread = std::this_thread::get_id()};
      if (sender_ == nullptr) return;
      EXPECT_TRUE(Deferral::PutOff(sender_));
    };
    if (company_ == nullptr) return scheduler.Submit(std::move(owned));
    submission.id = scheduler.NewId();
    company_->push_back(std::move(owned));
    return company_->back()->id;
  }

  JoinableProduct& Product(int64_t m = 3) {
    return products_.emplace_back(random_, kernel_, JoinableProduct::Shape{.m = m, .n = 8, .k = 16},
                                  &b_);
  }
  // A job that cannot run with any other.
  JoinableProduct& Loner() {
    JoinableProduct& product = Product();
    product.job.problem.b.order = Order::kRowMajor;
    product.job.problem.b = *TightLayout("b", kernel_.b, Order::kRowMajor, 16, 8);
    product.job.problem.alpha = static_cast<double>(products_.size());
    return product;
  }

  void ExpectRight(size_t place, const JoinableProduct& product) {
    EXPECT_EQ(answers_[place].status, absl::OkStatus());
    EXPECT_EQ(answers_[place].d, ResultOf(product.job, std::byte{0x5a})) << place;
  }

  RandomSource random_;
  const Kernel& kernel_ = SimulatedKernel("mma.m16n8k16.f32.f16.f16.f32");
  const std::vector<std::byte> b_ = RandomBytes(random_, 2 * 8 * 16);
  std::deque<JoinableProduct> products_;
  std::deque<Answer> answers_;
  std::shared_ptr<Deferred> sender_;  // Sends the answers so far.
  Company* company_ = nullptr;        // If not null, jobs to be submitted are collected there.
  Admission admission_{{.max_requests = 1000, .max_bytes = 1000}};
  FakeClock clock_;
  ScriptedDevice device_{"device", Simulated()};
  std::vector<Device*> devices_ = {&device_};
  Device* target_ = &device_;  // The device for the next job.
  Scheduler scheduler_{devices_, clock_};
};

TEST_F(JoinedJobsTest, WhatWaitsTogetherRunsAsOne) {
  Submit(scheduler_, Loner());
  for (const int64_t m : {3, 1, 20}) Submit(scheduler_, Product(m));
  Submit(scheduler_, Loner());
  device_.CompleteNext();
  EXPECT_EQ(device_.submitted(), 2);
  EXPECT_EQ(scheduler_.load(device_).queued_requests, 1);
  device_.CompleteNext();
  EXPECT_EQ(device_.submitted(), 3);
  device_.CompleteNext();
  for (size_t i = 0; i < products_.size(); ++i) ExpectRight(i, products_[i]);
  EXPECT_EQ(answers_[0].joined, 1);
  EXPECT_EQ(answers_[2].joined, 3);
  const DeviceLoad load = scheduler_.load(device_);
  EXPECT_EQ(load.stacked_requests, 3);
  EXPECT_EQ(load.batched_requests, 0);
  EXPECT_THAT(load.launches, testing::ElementsAre(2, 0, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(load.completed_requests, 5);
  EXPECT_EQ(load.queued_requests, 0);
  EXPECT_EQ(load.queued_bytes, 0);
  EXPECT_EQ(load.backlog_ns, 0);
}

TEST_F(JoinedJobsTest, WhatRanAsOneCorrectsProductsLikeTheWhole) {
  Kernel kernel = kernel_;
  kernel.position = 0;
  Submit(scheduler_, Loner());
  for (const int64_t m : {3, 1, 20}) {
    JoinableProduct& product = Product(m);
    product.job.kernel = &kernel;
    product.job.keeps_kernel = true;
    Submit(scheduler_, product);
  }
  device_.CompleteNext();
  clock_.Advance(1000);  // A fraction of the predicted time.
  device_.CompleteNext();
  EXPECT_EQ(answers_[1].joined, 3);
  Problem whole = products_[1].job.problem;
  whole.m = 24;
  EXPECT_LT(scheduler_.CorrectionOf(device_, kernel, whole)->factor(), 1);
}

// A kernel whose bits depend on m, like those of libraries on `cpu`: the job says whether they may
// vary.
TEST_F(JoinedJobsTest, WhatMayVaryRunsAsOneAndNothingElse) {
  Kernel varying = kernel_;
  varying.device_kind = DeviceKind::kCpu;
  varying.batch_invariant = false;
  const auto submit = [&](bool may_vary, std::string flow) {
    JoinableProduct& product = Product();
    product.job.kernel = &varying;
    product.job.may_vary = may_vary;
    product.job.b.is_resident = true;
    Submit(scheduler_, product, kNoDeadlineNs, std::move(flow));
  };
  // The first finds the device idle and runs alone.
  submit(true, "one");
  EXPECT_EQ(device_.held(), 1);
  for (const char* flow : {"one", "two", "three"}) {
    submit(true, flow);
    submit(false, flow);
  }
  while (device_.held() > 0) device_.CompleteNext();
  EXPECT_EQ(device_.submitted(), 5);
  for (size_t i = 0; i < products_.size(); ++i) {
    ExpectRight(i, products_[i]);
    EXPECT_EQ(answers_[i].joined, i % 2 == 1 ? 3 : 1) << i;
  }
  const DeviceLoad load = scheduler_.load(device_);
  EXPECT_EQ(load.stacked_requests, 3);
  EXPECT_EQ(load.batched_requests, 0);
  EXPECT_THAT(load.launches, testing::ElementsAre(4, 0, 1, 0, 0, 0, 0, 0, 0));
}

// The whole is of another shape class, for which the kernel is refused.
TEST_F(JoinedJobsTest, WhatTheDeviceIsNotTrustedWithAsAWholeRunsOneByOne) {
  const auto add_loss = [&](int64_t m, int64_t batch) {
    const JoinableProduct whole(random_, kernel_, {.m = m, .n = 8, .k = 16, .batch = batch});
    for (int i = 0; i < 2; ++i) device_.trust().AddLoss(kernel_, whole.job.problem);
  };
  add_loss(4000, 1);  // 2 * 4000 * 8 * 16 operations exceed a small product.
  add_loss(2000, 2);
  Submit(scheduler_, Loner());
  for (int i = 0; i < 2; ++i) {
    JoinableProduct& product = Product(2000);
    product.job.keeps_kernel = true;
    Submit(scheduler_, product);
  }
  device_.CompleteNext();
  EXPECT_EQ(scheduler_.load(device_).queued_requests, 1);
  device_.CompleteNext();
  device_.CompleteNext();
  const DeviceLoad load = scheduler_.load(device_);
  EXPECT_EQ(load.stacked_requests + load.batched_requests, 0);
  for (size_t i = 0; i < products_.size(); ++i) ExpectRight(i, products_[i]);
}

TEST_F(JoinedJobsTest, WhatComesTogetherRunsAsOne) {
  Company company;
  company_ = &company;
  for (const int64_t m : {3, 1, 20}) Submit(scheduler_, Product(m));
  EXPECT_EQ(device_.submitted(), 0);
  EXPECT_THAT(scheduler_.SubmitTogether(std::move(company), &admission_), testing::IsEmpty());
  EXPECT_EQ(device_.submitted(), 1);
  device_.CompleteNext();
  for (size_t i = 0; i < products_.size(); ++i) ExpectRight(i, products_[i]);
  EXPECT_EQ(answers_[0].joined, 3);
}

// Each is admitted separately, behind those before it.
TEST_F(JoinedJobsTest, WhatCannotBeInTimeIsGivenBackAndTheRestRuns) {
  Company company;
  company_ = &company;
  Submit(scheduler_, Product(3));
  Submit(scheduler_, Product(1), clock_.NowNs() + 999);  // Each takes 1000 ns.
  Submit(scheduler_, Product(20));
  std::vector<Scheduler::Refused> refused =
      scheduler_.SubmitTogether(std::move(company), &admission_);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].job->deadline_ns, clock_.NowNs() + 999);
  EXPECT_EQ(refused[0].why, Verdict::kTooLate);
  EXPECT_EQ(device_.submitted(), 1);
  device_.CompleteNext();
  ExpectRight(0, products_[0]);
  EXPECT_EQ(answers_[1].joined, 0);  // Not set.
  ExpectRight(2, products_[2]);
  EXPECT_EQ(answers_[2].joined, 2);
}

TEST_F(JoinedJobsTest, AllThatComesToASchedulerThatHasStoppedIsToldSo) {
  scheduler_.Stop(absl::UnavailableError("stopped"));
  Company company;
  company_ = &company;
  for (const int64_t m : {3, 1}) Submit(scheduler_, Product(m));
  EXPECT_THAT(scheduler_.SubmitTogether(std::move(company), &admission_), testing::IsEmpty());
  for (const Answer& answer : answers_) EXPECT_EQ(answer.status.message(), "stopped");
}

// A small launch costs a device's thread as much as a large one.
TEST_F(JoinedJobsTest, WhatCanJoinWaitsWhileItsDeviceHasEnough) {
  ScriptedDevice deep("deep", Simulated(), /*depth=*/24);
  std::vector<Device*> devices = {&deep};
  Scheduler scheduler(devices, clock_);
  target_ = &deep;
  for (int i = 0; i < 8; ++i) Submit(scheduler, Product());
  EXPECT_EQ(deep.held(), 3);
  deep.CompleteNext();
  EXPECT_EQ(deep.submitted(), 4);
  EXPECT_EQ(scheduler.load(deep).queued_requests, 0);
  for (int i = 0; i < 5; ++i) {
    JoinableProduct& product = Product();
    product.job.d.is_new = true;  // A job that makes a new tensor joins nothing.
    Submit(scheduler, product);
  }
  EXPECT_EQ(deep.held(), 8);
  while (deep.held() > 0) deep.CompleteNext();
  for (size_t i = 0; i < products_.size(); ++i) {
    ExpectRight(i, products_[i]);
    EXPECT_EQ(answers_[i].joined, i >= 3 && i < 8 ? 5 : 1) << i;
  }
}

TEST_F(JoinedJobsTest, OtherThreadsAnswerLaunchesOfMany) {
  constexpr int kMany = 20;
  {
    Scheduler scheduler(devices_, clock_, {}, /*answering_threads=*/2);
    Submit(scheduler, Loner());
    for (int i = 0; i < kMany; ++i) Submit(scheduler, Product(1 + i % 3));
    device_.CompleteNext();
    device_.CompleteNext();
  }
  ExpectRight(0, products_[0]);
  EXPECT_EQ(answers_[0].thread, std::this_thread::get_id());
  for (size_t i = 1; i <= kMany; ++i) {
    ExpectRight(i, products_[i]);
    EXPECT_EQ(answers_[i].joined, kMany);
    EXPECT_NE(answers_[i].thread, std::this_thread::get_id());
  }
}

TEST_F(JoinedJobsTest, WhatRanAsOneIsSentTogether) {
  class Sender final : public Deferred {
   public:
    explicit Sender(const std::deque<Answer>& answers) : answers_(answers) {}
    void RunDeferred() override {
      sent.push_back(std::count_if(answers_.begin(), answers_.end(),
                                   [](const Answer& answer) { return answer.joined > 0; }));
    }

    std::vector<int64_t> sent;  // The number of answers so far, each time.

   private:
    const std::deque<Answer>& answers_;
  };
  const auto sender = std::make_shared<Sender>(answers_);
  sender_ = sender;
  Submit(scheduler_, Loner());
  for (const int64_t m : {3, 1, 20}) Submit(scheduler_, Product(m));
  device_.CompleteNext();
  EXPECT_THAT(sender->sent, testing::ElementsAre(1));
  device_.CompleteNext();
  EXPECT_THAT(sender->sent, testing::ElementsAre(1, 4));
}

TEST_F(JoinedJobsTest, WhatComesTogetherJoinsWhatWaits) {
  Submit(scheduler_, Loner());
  Submit(scheduler_, Product());
  Company company;
  company_ = &company;
  const JobId first = Submit(scheduler_, Product());
  Submit(scheduler_, Product());
  EXPECT_THAT(scheduler_.SubmitTogether(std::move(company), &admission_), testing::IsEmpty());
  scheduler_.Cancel(first);
  EXPECT_TRUE(absl::IsCancelled(answers_[2].status));
  device_.CompleteNext();
  EXPECT_EQ(device_.submitted(), 2);
  device_.CompleteNext();
  for (const size_t i : {0, 1, 3}) ExpectRight(i, products_[i]);
  EXPECT_EQ(answers_[3].joined, 2);
}

TEST_F(JoinedJobsTest, ProductsOfOtherMatricesAreBatched) {
  Submit(scheduler_, Loner());
  for (int i = 0; i < 4; ++i) {
    products_.emplace_back(random_, kernel_, JoinableProduct::Shape{});
    Submit(scheduler_, products_.back());
  }
  device_.CompleteNext();
  device_.CompleteNext();
  for (size_t i = 0; i < products_.size(); ++i) ExpectRight(i, products_[i]);
  EXPECT_EQ(scheduler_.load(device_).batched_requests, 4);
}

// A kernel with the same bits that is faster for the whole. A caller that named a kernel gets that
// kernel.
TEST_F(JoinedJobsTest, TheWholeHasAKernelOfItsOwn) {
  const Kernel& wide = SimulatedKernel("wgmma.m64n8k16.f32.f16.f16");
  DeviceProfile profile = Simulated();
  profile.kernel_rates.assign(Catalog(DeviceKind::kSim).size(), 1e6);
  profile.kernel_rates[wide.position] = 1e12;
  ScriptedDevice device("device", profile);
  target_ = &device;
  const std::vector<Device*> devices = {&device};
  Scheduler scheduler(devices, clock_);
  Submit(scheduler, Loner());
  for (const int64_t m : {3, 1}) Submit(scheduler, Product(m));
  for (const int64_t m : {3, 1}) {
    JoinableProduct& given = Product(m);
    given.job.keeps_kernel = true;
    Submit(scheduler, given);
  }
  for (int i = 0; i < 3; ++i) device.CompleteNext();
  for (size_t i = 0; i < products_.size(); ++i) {
    ExpectRight(i, products_[i]);
    EXPECT_EQ(answers_[i].joined, i == 0 ? 1 : 2);
  }
  EXPECT_EQ(answers_[0].kernel, nullptr);
  EXPECT_EQ(answers_[1].kernel, &wide);
  EXPECT_EQ(answers_[2].kernel, &wide);
  EXPECT_EQ(answers_[3].kernel, &kernel_);
}

TEST_F(JoinedJobsTest, PrioritiesDoNotMix) {
  Submit(scheduler_, Loner());
  Submit(scheduler_, Product());
  Submit(scheduler_, Product(), kNoDeadlineNs, "one", Priority::kLow);
  device_.CompleteNext();
  device_.CompleteNext();
  EXPECT_EQ(device_.submitted(), 3);
  EXPECT_EQ(answers_[1].joined, 1);
  device_.CompleteNext();
}

TEST_F(JoinedJobsTest, ACancelledOneTakesNoOtherWithIt) {
  Submit(scheduler_, Loner());
  Submit(scheduler_, Product());
  const JobId cancelled = Submit(scheduler_, Product());
  Submit(scheduler_, Product());
  device_.CompleteNext();
  scheduler_.Cancel(cancelled);
  EXPECT_EQ(device_.aborts(), 0);
  device_.CompleteNext();
  ExpectRight(1, products_[1]);
  ExpectRight(3, products_[3]);
}

TEST_F(JoinedJobsTest, IsAbortedOnceNobodyWaits) {
  Submit(scheduler_, Loner());
  const JobId first = Submit(scheduler_, Product());
  const JobId second = Submit(scheduler_, Product());
  device_.CompleteNext();
  scheduler_.Cancel(second);
  EXPECT_EQ(device_.aborts(), 0);
  scheduler_.Cancel(first);
  EXPECT_EQ(device_.aborts(), 1);
  EXPECT_EQ(answers_[1].status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(answers_[2].status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(answers_[1].status.message(), "cancelled while it ran");
}

TEST_F(JoinedJobsTest, AllAreToldOfAFailure) {
  Submit(scheduler_, Loner());
  Submit(scheduler_, Product());
  Submit(scheduler_, Product());
  device_.CompleteNext();
  device_.CompleteNext(absl::AbortedError("lost"));
  EXPECT_EQ(answers_[1].status, absl::AbortedError("lost"));
  EXPECT_EQ(answers_[2].status, absl::AbortedError("lost"));
}

// The whole would take longer than the time left: jobs that have time wait for their own turn.
TEST_F(JoinedJobsTest, NoDeadlineIsRisked) {
  Submit(scheduler_, Loner());
  Submit(scheduler_, Product(), clock_.NowNs() + SafeNs(1000));
  Submit(scheduler_, Product());
  device_.CompleteNext();
  device_.CompleteNext();
  ASSERT_EQ(device_.submitted(), 3);
  device_.CompleteNext();
  EXPECT_EQ(answers_[1].joined, 1);
}

TEST_F(JoinedJobsTest, LimitsHold) {
  Scheduler scheduler(devices_, clock_, {.limits = {.max_jobs = 3}});
  Submit(scheduler, Loner());
  for (int i = 0; i < 5; ++i) Submit(scheduler, Product());
  for (int i = 0; i < 3; ++i) device_.CompleteNext();
  EXPECT_EQ(answers_[1].joined, 3);
  EXPECT_EQ(answers_[4].joined, 2);
  const int64_t bytes = JoinBytesOf(products_[1].job, Joining::kStacked);
  Scheduler narrow(devices_, clock_, {.limits = {.max_bytes = 2 * bytes}});
  answers_.clear();
  Submit(narrow, products_[0]);
  for (size_t i = 1; i < 5; ++i) Submit(narrow, products_[i]);
  for (int i = 0; i < 3; ++i) device_.CompleteNext();
  EXPECT_EQ(answers_[1].joined, 2);
  EXPECT_EQ(answers_[4].joined, 2);
}

// Those whose results overlap are passed over, but not without end.
TEST_F(JoinedJobsTest, NoMoreAreLookedAtThanMayBeJoined) {
  for (const int64_t max_jobs : {4, 5}) {
    answers_.clear();
    Scheduler scheduler(devices_, clock_, {.limits = {.max_jobs = max_jobs}});
    Submit(scheduler, Loner());
    const auto d_bytes = static_cast<size_t>(Product().job.d_bytes);
    std::vector<std::byte> d(3 * d_bytes);
    for (const size_t at : {size_t{0}, size_t{4}, size_t{4}, size_t{8}, 2 * d_bytes}) {
      JoinableProduct& product = Product();
      product.job.d.memory = d.data() + at;
      Submit(scheduler, product);
    }
    for (int i = 0; i < 6; ++i) {
      if (device_.held() > 0) device_.CompleteNext();
    }
    EXPECT_EQ(answers_[1].joined, max_jobs == 5 ? 2 : 1);
  }
}

TEST_F(JoinedJobsTest, AnIdleDeviceWaitsForTheWindow) {
  Scheduler scheduler(devices_, clock_, {.limits = {}, .window_ns = 2 * kMs});
  int wakes = 0;
  scheduler.WatchDeadlines([&wakes] { ++wakes; });
  EXPECT_EQ(scheduler.EndExpired(), kNoDeadlineNs);
  const int64_t start_ns = clock_.NowNs();
  Submit(scheduler, Product());
  EXPECT_EQ(device_.held(), 0);
  EXPECT_EQ(wakes, 1);
  clock_.Advance(kMs);
  Submit(scheduler, Product());
  EXPECT_EQ(device_.held(), 0);
  EXPECT_EQ(scheduler.EndExpired(), start_ns + 2 * kMs);
  clock_.Advance(kMs);
  scheduler.EndExpired();
  EXPECT_EQ(device_.held(), 1);
  device_.CompleteNext();
  EXPECT_EQ(answers_[0].joined, 2);
  ExpectRight(0, products_[0]);
  ExpectRight(1, products_[1]);
  // A job that can run with no other does not wait, and no deadline is put at risk.
  Submit(scheduler, Loner(), clock_.NowNs() + SafeNs(1000));
  EXPECT_EQ(device_.held(), 1);
  device_.CompleteNext();
  Submit(scheduler, Product(), clock_.NowNs() + SafeNs(1000));
  EXPECT_EQ(device_.held(), 1);
  device_.CompleteNext();
  scheduler.WatchDeadlines(nullptr);
}

}  // namespace
}  // namespace gemmd
