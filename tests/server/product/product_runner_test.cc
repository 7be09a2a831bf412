// SPDX-License-Identifier: Apache-2.0
//
// What a product is charged for and what its caller is told, with a clock and a device that only
// move when the test moves them.
#include "server/product/product_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/text.h"
#include "server/system/log.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// All engines of the device are equally fast.
DeviceProfile ProfileOf(const Target& target) {
  DeviceProfile profile{.target = target, .rates = {}};
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    profile.rates.push_back({std::string(kernel.engine), 1e9});
  }
  return profile;
}

// A product of f32 matrices.
std::unique_ptr<Product> Request(int64_t m, int64_t n, int64_t k,
                                 ElementType d_type = ElementType::kF32) {
  auto request = std::make_unique<Product>();
  Problem& problem = request->job.problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = TightLayout("a", ElementType::kF32, Order::kRowMajor, m, k).value();
  problem.b = TightLayout("b", ElementType::kF32, Order::kRowMajor, k, n).value();
  problem.d = TightLayout("d", d_type, Order::kRowMajor, m, n).value();
  return request;
}

class ProductRunnerTest : public testing::Test {
 protected:
  struct Limits {
    Admission::Limits admission = {.max_requests = 10, .max_bytes = int64_t{1} << 40};
    int64_t max_message_bytes = int64_t{1} << 40;
  };

  void SetUp() override {
    device_.on_submit = [this](const Job& job, const Device::Done&) { last_job_ = job; };
    device_.IgnoreAborts();
  }
  void TearDown() override { Finish(); }

  void EndAll() {
    while (device_.held() > 0) device_.CompleteNextWith({});
  }

  // Ends everything that was started, and returns its tickets.
  void Finish() {
    EndAll();
    tickets_.clear();
  }

  void SetLimits(const Limits& limits) {
    Finish();
    admission_ = std::make_unique<Admission>(limits.admission);
    runner_ = std::make_unique<ProductRunner>(served_, scheduler_, *admission_, stats_, clock_,
                                              limits.max_message_bytes);
  }

  // Starts a product that arrives now. Its ticket lives as long as the test.
  absl::Status Start(std::unique_ptr<Product> product, Arrival arrival = {}) {
    if (arrival.arrived_ns == 0) arrival.arrived_ns = clock_.NowNs();
    product->arrival = std::move(arrival);
    last_id_ = product->id = runner_->NewId();
    product->answer = [this](std::unique_ptr<Product> ended) {
      last_ = {ended->outcome.status, ended->timing, ended->job.problem, ended->caller};
      tickets_.push_back(std::move(ended->ticket));
    };
    return runner_->Start(product, absl::OkStatus());
  }

  // Starts square products of one user on a connection. Returns how many before one was refused.
  int64_t StartUntilRefused(uint64_t connection, int64_t edge, absl::Status& refused) {
    int64_t taken = 0;
    for (refused = absl::OkStatus(); refused.ok(); taken += refused.ok() ? 1 : 0) {
      Arrival arrival;
      arrival.peer_name = std::make_shared<const std::string>("unix:uid:1000");
      arrival.connection = connection;
      std::unique_ptr<Product> product = Request(edge, edge, 8);
      product->ticket = runner_->Hold(0, arrival).value();
      refused = Start(std::move(product), arrival);
    }
    return taken;
  }

  FakeClock clock_;
  Job last_job_;  // Of the device.
  ScriptedDevice device_{"holding", ProfileOf(HostTarget())};
  const std::vector<ServedDevice> served_ = {{&device_, absl::OkStatus()}};
  const std::vector<Device*> devices_ = {&device_};
  Scheduler scheduler_{devices_, clock_};
  Stats stats_{1};
  std::unique_ptr<Admission> admission_;
  std::deque<Admission::Ticket> tickets_;
  std::unique_ptr<ProductRunner> runner_;
  JobId last_id_ = 0;
  struct Ended {
    absl::Status status;
    ProductTiming timing;
    Problem problem;
    std::string caller;
  };
  Ended last_;
};

TEST_F(ProductRunnerTest, AKernelOfWhichWorkersDiedIsNotChosenForItsClass) {
  SetLimits({});
  const auto kernel_of = [&](int64_t m) {
    const absl::StatusOr<ProductRunner::Placement> place = runner_->FindPlace(*Request(m, 8, 8));
    return place.ok() ? place->kernel : nullptr;
  };
  const Problem problem = Request(8, 8, 8)->job.problem;
  std::vector<const Kernel*> refused;
  const Kernel* const best = kernel_of(8);
  while (const Kernel* const kernel = kernel_of(8)) {
    ASSERT_EQ(std::count(refused.begin(), refused.end(), kernel), 0);
    refused.push_back(kernel);
    device_.trust().AddLoss(*kernel, problem);
    EXPECT_EQ(kernel_of(8), kernel) << "once is no pattern";
    device_.trust().AddLoss(*kernel, problem);
  }
  EXPECT_GE(refused.size(), 2u);
  EXPECT_THAT(Start(Request(8, 8, 8)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(std::string(best->name)),
                             HasSubstr("is refused for small products on holding"),
                             HasSubstr("`gemmctl restart-device holding`"))));
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kKernelRefused)], 1);
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kInternal)], 0);
  EXPECT_NE(kernel_of(16384), nullptr) << "of another class";
  // Another device serves; if none does, the one that has a reason of this kind explains it best.
  ScriptedDevice other("holding", ProfileOf(HostTarget()));
  const std::vector<ServedDevice> both = {{&device_, absl::OkStatus()}, {&other, absl::OkStatus()}};
  const ProductRunner runner(both, scheduler_, *admission_, stats_, clock_, int64_t{1} << 40);
  EXPECT_EQ(runner.FindPlace(*Request(8, 8, 8))->served, &both[1]);
  // This simulator has no kernel for f32.
  ScriptedDevice simulator("holding",
                           ProfileOf({.kind = DeviceKind::kSim, .chip = mma::Chip::kSm80}));
  const std::vector<ServedDevice> swapped = {{&simulator, absl::OkStatus()},
                                             {&device_, absl::OkStatus()}};
  const ProductRunner asked(swapped, scheduler_, *admission_, stats_, clock_, int64_t{1} << 40);
  EXPECT_EQ(asked.FindPlace(*Request(8, 8, 8))->served, &swapped[1]);
  device_.trust().ForgetLosses();
  EXPECT_EQ(kernel_of(8), best);
}

TEST_F(ProductRunnerTest, BitsVaryWhereNeitherTheRequestNorItsCheckNeedsThem) {
  SetLimits({});
  const auto may_vary = [&](const std::function<void(Product&)>& ask) {
    std::unique_ptr<Product> product = Request(8, 8, 8);
    ask(*product);
    const bool is_said = runner_->MayVary(*product);
    EXPECT_EQ(Start(std::move(product)), absl::OkStatus());
    EXPECT_EQ(last_job_.may_vary, is_said);
    EndAll();
    return is_said;
  };
  const Kernel* const kernel = runner_->FindPlace(*Request(8, 8, 8))->kernel;
  EXPECT_TRUE(may_vary([](Product&) {}));
  EXPECT_TRUE(may_vary([&](Product& product) { product.constraints.kernel = kernel; }));
  EXPECT_FALSE(may_vary([](Product& product) { product.constraints.deterministic = true; }));
  const auto asks = [](bool batch_invariant, std::optional<VerifyMode> check = {}) {
    std::unique_ptr<Product> product = Request(8, 8, 8);
    product->constraints.batch_invariant = batch_invariant;
    if (check) product->asked_check = VerifyRule{.mode = *check};
    return product;
  };
  EXPECT_FALSE(runner_->MayVary(*asks(true)));
  EXPECT_TRUE(runner_->MayVary(*asks(false, VerifyMode::kSampled)));
  EXPECT_TRUE(runner_->MayVary(*asks(false, VerifyMode::kChecksum)));
  EXPECT_FALSE(runner_->MayVary(*asks(false, VerifyMode::kDuplicate)));
  // The server's check applies to requests that ask for none.
  VerifySetup twice;
  twice.options.rule.mode = VerifyMode::kDuplicate;
  const ProductRunner checking(served_, scheduler_, *admission_, stats_, clock_, int64_t{1} << 40,
                               nullptr, std::move(twice));
  EXPECT_FALSE(checking.MayVary(*asks(false)));
  EXPECT_TRUE(checking.MayVary(*asks(false, VerifyMode::kNone)));
  // Only a kernel with the same bits every time can be checked by a second product.
  Kernel changing = *kernel;
  changing.deterministic = false;
  EXPECT_EQ(NeedsOf({.mode = VerifyMode::kDuplicate}, changing, Request(8, 8, 8)->job.problem)
                .status()
                .message(),
            Concat("verify.mode: got duplicate with ", kernel->name,
                   ", want a kernel that gives the same bits every time"));
  // With a limit of one, no product joins another.
  Scheduler alone(devices_, clock_, {.limits = {.max_jobs = 1}});
  const ProductRunner lone(served_, alone, *admission_, stats_, clock_, int64_t{1} << 40);
  EXPECT_FALSE(lone.MayVary(*Request(8, 8, 8)));
}

TEST_F(ProductRunnerTest, WhatWaitsAsItsKernelIsRefusedHasAnotherOne) {
  SetLimits({});
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  const Problem problem = Request(8, 8, 8)->job.problem;
  // The device refuses each kernel in turn, until none is left.
  int refused = 0;
  while (tickets_.empty()) {
    const Kernel& kernel = *last_job_.kernel;
    EXPECT_THAT(device_.trust().CheckLosses(kernel, problem, "holding"), IsOk()) << kernel.name;
    for (int i = 0; i < 2; ++i) device_.trust().AddLoss(kernel, problem);
    device_.CompleteNextWith({.status = device_.trust().CheckLosses(kernel, problem, "holding")});
    ++refused;
  }
  EXPECT_GE(refused, 2);
  EXPECT_THAT(last_.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("is refused for small products on holding")));
  // The loss of a tensor has the same code.
  device_.trust().ForgetLosses();
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  device_.CompleteNextWith({.status = absl::FailedPreconditionError("tensor lost")});
  EXPECT_EQ(tickets_.size(), 2u);
  EXPECT_THAT(last_.status, StatusIs(absl::StatusCode::kFailedPrecondition, "tensor lost"));
}

TEST_F(ProductRunnerTest, EachStageIsTimedByItself) {
  SetLimits({});
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());  // The device is busy with this one.
  Arrival arrival;
  arrival.arrived_ns = clock_.NowNs();
  clock_.Advance(3);  // Until it is parsed and admitted.
  ASSERT_THAT(Start(Request(8, 8, 8), arrival), IsOk());
  ASSERT_THAT(Start(Request(8, 8, 16)), IsOk());  // It is launched before the second is answered.
  clock_.Advance(50);                             // In the queue.
  device_.CompleteNextWith(
      {});               // The second product is launched, then the first one's answer is made.
  clock_.Advance(1000);  // On the device.
  device_.on_submit = [this](const Job&, Device::Done&) { clock_.Advance(19); };
  device_.CompleteNextWith({.status = absl::OkStatus(),
                            .wait_ns = 7,
                            .copy_in_ns = 11,
                            .compute_ns = 13,
                            .copy_out_ns = 17});
  ASSERT_THAT(last_.status, IsOk());
  EXPECT_EQ(last_.timing[Stage::kReceive], 3);
  EXPECT_EQ(last_.timing[Stage::kQueue], 50 + 7);
  EXPECT_EQ(last_.timing[Stage::kCopyIn], 11);
  EXPECT_EQ(last_.timing[Stage::kCompute], 13);
  EXPECT_EQ(last_.timing[Stage::kCopyOut], 17);
  EXPECT_EQ(last_.timing[Stage::kSendPrepare], 19);
  EXPECT_EQ(last_.timing.total_ns, 3 + 50 + 1000 + 19);
  device_.on_submit = nullptr;
}

// Products of 2e9 operations at 1e9 a second that take 8 s instead of 2 s, then 2 s again, or are
// given up after 8 s. Of stages that overlap with another product's, the time of both counts once.
TEST_F(ProductRunnerTest, TheBacklogIsWhatProductsLikeThisOneTook) {
  constexpr double kPredictedNs = 2e9;
  SetLimits({.admission = {.max_requests = 100, .max_bytes = int64_t{1} << 40}});
  const auto run = [&](int64_t compute_ns, int64_t overlap_ns = 0, bool is_cancelled = false) {
    for (int i = 0; i < 12; ++i) {
      ASSERT_THAT(Start(Request(1000, 1000, 1000)), IsOk());
      EXPECT_EQ(static_cast<double>(last_job_.predicted.kernel_ns), kPredictedNs);
      clock_.Advance(compute_ns - overlap_ns);
      if (is_cancelled) runner_->Cancel(last_id_);
      const absl::Status status = is_cancelled ? absl::CancelledError("aborted") : absl::OkStatus();
      device_.CompleteNextWith({.status = status, .compute_ns = compute_ns});
    }
  };
  const auto backlog_ns = [&] {
    EXPECT_THAT(Start(Request(1000, 1000, 1000)), IsOk());
    const int64_t expected_ns = scheduler_.load(device_).backlog_ns;
    device_.CompleteNextWith({.status = absl::CancelledError("the test has its number")});
    return static_cast<double>(expected_ns);
  };
  EXPECT_NEAR(backlog_ns(), kPredictedNs, 1);
  run(8'000'000'000);
  EXPECT_NEAR(backlog_ns(), 4 * kPredictedNs, 0.4 * kPredictedNs);
  run(2'000'000'000);
  EXPECT_NEAR(backlog_ns(), kPredictedNs, 0.1 * kPredictedNs);
  run(8'000'000'000, /*overlap_ns=*/6'000'000'000);
  EXPECT_NEAR(backlog_ns(), kPredictedNs, 0.1 * kPredictedNs);
  run(8'000'000'000, 0, /*is_cancelled=*/true);
  EXPECT_NEAR(backlog_ns(), 4 * kPredictedNs, 0.4 * kPredictedNs);
  run(1'000'000'000, 0, /*is_cancelled=*/true);
  EXPECT_NEAR(backlog_ns(), 4 * kPredictedNs, 0.4 * kPredictedNs);
}

TEST_F(ProductRunnerTest, CountsForTheRuleOfTheCaller) {
  SetLimits({.admission = {.max_requests = 2, .max_bytes = int64_t{1} << 40}});
  const auto identity = std::make_shared<Identity>();
  identity->name = "team/a";
  identity->meter = std::make_shared<Meter>();
  identity->use = std::make_shared<RuleUse>("team/*");
  Arrival arrival;
  arrival.caller = identity;
  ASSERT_THAT(Start(Request(8, 8, 8), arrival), IsOk());
  ASSERT_THAT(Start(Request(8, 8, 8), arrival), IsOk());
  EXPECT_FALSE(Start(Request(8, 8, 8), arrival).ok());                    // There is no room,
  EXPECT_FALSE(Start(Request(8, 8, 8, ElementType::kB1), arrival).ok());  // and no such kernel.
  EXPECT_FALSE(runner_->Hold(int64_t{1} << 41, arrival).ok());
  EXPECT_EQ(identity->use->totals().answered, 0);
  device_.CompleteNextWith({.status = absl::OkStatus(), .compute_ns = 13});
  device_.CompleteNextWith({.status = absl::AbortedError("the device is gone")});
  const RuleUse::Totals totals = identity->use->totals();
  EXPECT_EQ(totals.answered, 1);
  EXPECT_EQ(totals.compute_ns, 13);
  EXPECT_EQ(totals.failed, 1);
  EXPECT_EQ(totals.refused, 3);

  // Callers that are only known by their host are counted for no rule.
  tickets_.clear();
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  device_.CompleteNextWith({.status = absl::OkStatus(), .compute_ns = 13});
  EXPECT_EQ(identity->use->totals().answered, 1);
}

TEST(CallerRulesTest, ProductsThatRanAsOneShareItsTime) {
  const auto identity = std::make_shared<Identity>();
  identity->use = std::make_shared<RuleUse>("a");
  Arrival arrival;
  arrival.caller = identity;
  Product product;
  product.arrival = arrival;
  product.timing[Stage::kCompute] = 12;
  product.joined = 3;
  for (int i = 0; i < 3; ++i) CountEnd(product);
  EXPECT_EQ(identity->use->totals().compute_ns, 12);
  EXPECT_EQ(identity->use->totals().answered, 3);
}

TEST_F(ProductRunnerTest, RefusalsSayWhenTheDeviceWillBeDone) {
  const struct {
    int64_t m;
    int64_t want_ms;
  } cases[] = {{.m = 1, .want_ms = 2},  // 2 * 1000 * 1000 operations at 1e9 a second.
               {.m = 100, .want_ms = 200},
               {.m = 20'000, .want_ms = 10'000},  // Not 40 s, but the maximum.
               {.m = 0, .want_ms = 1}};           // The minimum.
  for (const auto& [m, want_ms] : cases) {
    SetLimits({.admission = {.max_requests = 1, .max_bytes = int64_t{1} << 40}});
    ASSERT_THAT(Start(Request(m, 1000, 1000)), IsOk());
    const absl::Status refused = Start(Request(8, 8, 8));
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_EQ(RetryAfterMs(refused), want_ms);
  }
}

// An f16 result is first summed in f32, in scratch memory.
TEST_F(ProductRunnerTest, ScratchMemoryIsAdmittedToo) {
  const Kernel* const kernel = FindKernel("openblas.f32.f32.f32").value();
  const auto make_request = [kernel] {
    std::unique_ptr<Product> request = Request(30, 40, 50, ElementType::kF16);
    request->constraints.kernel = kernel;
    return request;
  };
  const Problem problem = make_request()->job.problem;
  const int64_t matrix_bytes = (30 * 50 + 50 * 40) * 4 + 30 * 40 * 2;
  const int64_t scratch_bytes = kernel->workspace_bytes(problem).value();
  ASSERT_GE(scratch_bytes, 30 * 40 * 4);
  const int64_t whole_bytes = matrix_bytes + scratch_bytes;

  SetLimits({.admission = {.max_requests = 10, .max_bytes = whole_bytes}});
  ASSERT_THAT(Start(make_request()), IsOk());
  EXPECT_EQ(admission_->load().bytes, whole_bytes);

  SetLimits({.admission = {.max_requests = 10, .max_bytes = whole_bytes - 1}});
  EXPECT_THAT(Start(make_request()), StatusIs(absl::StatusCode::kResourceExhausted,
                                              HasSubstr("queue: the request needs ")));
}

TEST_F(ProductRunnerTest, AnAnswerNeedsRoomBesideItsMatrix) {
  constexpr int64_t kMatrixBytes = 64 * 64 * 4;
  SetLimits({.max_message_bytes = kMatrixBytes + 4096});
  EXPECT_THAT(Start(Request(64, 64, 1)), IsOk());
  SetLimits({.max_message_bytes = kMatrixBytes + 4095});
  EXPECT_THAT(Start(Request(64, 64, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "d: the result takes 16384 bytes, a message holds at most 16383"));
}

TEST_F(ProductRunnerTest, WhatWaitsCountsWithItsOperandsAndItsResult) {
  SetLimits({});
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  EXPECT_EQ(scheduler_.load(device_).queued_bytes, 0);
  ASSERT_THAT(Start(Request(30, 40, 50)), IsOk());
  EXPECT_EQ(scheduler_.load(device_).queued_bytes, (30 * 50 + 50 * 40 + 30 * 40) * 4);
  device_.CompleteNextWith({});
  EXPECT_EQ(scheduler_.load(device_).queued_bytes, 0);
}

TEST_F(ProductRunnerTest, RefusesWhatCannotBeInTime) {
  SetLimits({});
  Arrival arrival;
  arrival.deadline_ns = clock_.NowNs() + 1'000'000'000;
  // 2e9 operations at 1e9 a second.
  EXPECT_THAT(Start(Request(1000, 1000, 1000), arrival),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "product: predicted to take 2s, 1s are left until the deadline"));
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kDeadline)], 1);
  EXPECT_EQ(admission_->load().admitted, 0);

  ASSERT_THAT(Start(Request(1000, 1000, 400)), IsOk());  // Occupies the device for 0.8 s.
  const absl::Status busy = Start(Request(1000, 1000, 200), arrival);
  EXPECT_THAT(busy, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("to wait 800ms")));
  EXPECT_EQ(RetryAfterMs(busy), 200);
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kBacklog)], 1);
  EXPECT_THAT(Start(Request(1000, 1000, 50), arrival), IsOk());
}

TEST_F(ProductRunnerTest, ADrainSaysSoWhateverTheQueueIs) {
  SetLimits({});
  admission_->Close();
  Arrival arrival;
  arrival.deadline_ns = clock_.NowNs() + 1;
  EXPECT_THAT(Start(Request(1000, 1000, 1000), arrival),
              StatusIs(absl::StatusCode::kUnavailable, "the server is draining"));
}

// Ten connections of one host, and one of another.
TEST_F(ProductRunnerTest, OneCallerDoesNotTakeAllPlaces) {
  constexpr int64_t kPlaces = 64;
  SetLimits({.admission = {.max_requests = kPlaces, .max_bytes = int64_t{1} << 40}});
  int64_t taken = 0;
  absl::Status refused;
  for (int i = 0; refused.ok(); ++i) {
    Arrival arrival;
    arrival.peer_name =
        std::make_shared<const std::string>("ipv4:192.0.2.1:" + std::to_string(40'000 + i % 10));
    arrival.connection = i % 10;
    refused = Start(Request(8, 8, 8), arrival);
    taken += refused.ok() ? 1 : 0;
  }
  EXPECT_EQ(taken, kPlaces * 7 / 8);
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "queue: the caller has 56 requests in progress, 8 of 64 places are kept "
                       "for others"));
  EXPECT_NE(RetryAfterMs(refused), std::nullopt);
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kShare)], 1);
  Arrival light;
  light.peer_name = std::make_shared<const std::string>("ipv4:192.0.2.2:50000");
  EXPECT_THAT(Start(Request(8, 8, 8), light), IsOk());
  device_.CompleteNextWith({});  // The running product; the next turn is the newcomer's.
  last_ = {};
  device_.CompleteNextWith({});
  EXPECT_THAT(last_.status, IsOk());
  EXPECT_EQ(last_.caller, "ipv4:192.0.2.2");
  EXPECT_EQ(tickets_.size(), 2u);
}

// All come over one connection. Each is admitted behind those before it.
TEST_F(ProductRunnerTest, AListDoesNotTakeAllPlaces) {
  constexpr int64_t kPlaces = 64;
  constexpr int64_t kTaken = kPlaces * 7 / 8 * 7 / 8;
  SetLimits({.admission = {.max_requests = kPlaces, .max_bytes = int64_t{1} << 40}});
  Company company;
  std::vector<absl::Status> refused;
  for (int64_t i = 0; i <= kTaken; ++i) {
    std::unique_ptr<Product> product = Request(8, 8, 8);
    product->id = runner_->NewId();
    product->arrival.arrived_ns = clock_.NowNs();
    product->answer = [&](const std::unique_ptr<Product>& ended) {
      if (absl::IsResourceExhausted(ended->outcome.status)) {
        refused.push_back(ended->outcome.status);
      }
    };
    ASSERT_THAT(runner_->StartWith(company, product, absl::OkStatus()), IsOk());
  }
  EXPECT_EQ(admission_->load().admitted, 0);
  runner_->StartTogether(std::move(company));
  EXPECT_EQ(admission_->load().admitted, kTaken);
  EXPECT_EQ(admission_->load().requests, kTaken);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(refused[0], StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("the connection has 49 requests in progress")));
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kShare)], 1);
  scheduler_.Stop(absl::UnavailableError("over"));
}

// Ten connections of one user of a unix socket, and one of another user.
TEST_F(ProductRunnerTest, UsersOfOneUnixSocketHavePlacesOfTheirOwn) {
  constexpr int64_t kPlaces = 64;
  SetLimits({.admission = {.max_requests = kPlaces, .max_bytes = int64_t{1} << 40}});
  const auto start = [this](const char* peer, uint64_t connection) {
    Arrival arrival;
    arrival.peer_name = std::make_shared<const std::string>(peer);
    arrival.connection = connection;
    return Start(Request(8, 8, 8), arrival);
  };
  int64_t taken = 0;
  absl::Status refused;
  for (uint64_t i = 0; refused.ok(); ++i) {
    refused = start("unix:uid:1000", i % 10);
    taken += refused.ok() ? 1 : 0;
  }
  EXPECT_EQ(taken, kPlaces * 7 / 8);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("the caller has 56 requests in progress")));
  EXPECT_THAT(start("unix:uid:1000", 10), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(start("unix:uid:1001", 11), IsOk());
  device_.CompleteNextWith({});  // The running product; the next turn is the other user's.
  device_.CompleteNextWith({});
  EXPECT_EQ(last_.caller, "uid:1001");
  EXPECT_EQ(tickets_.size(), 2u);
}

TEST_F(ProductRunnerTest, OneConnectionDoesNotTakeAllPlacesOfItsCaller) {
  constexpr int64_t kPlaces = 512;
  SetLimits({.admission = {.max_requests = kPlaces, .max_bytes = int64_t{1} << 40}});
  const auto take = [this](uint64_t connection, absl::Status& refused) {
    return StartUntilRefused(connection, 8, refused);
  };
  absl::Status refused;
  EXPECT_EQ(take(1, refused), kPlaces * 7 / 8 * 7 / 8);
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "queue: the connection has 392 requests in progress, 56 places of its "
                       "caller are kept for others of its connections"));
  EXPECT_NE(RetryAfterMs(refused), std::nullopt);
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kShare)], 1);
  EXPECT_EQ(take(2, refused), 56 * 7 / 8);
  EXPECT_EQ(take(3, refused), 7);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the caller has")));
}

TEST_F(ProductRunnerTest, AnswersOfOneConnectionDoNotTakeAllRoomOfItsCaller) {
  constexpr int64_t kAnswers = 16;  // Of a megabyte, for one caller.
  SetLimits({.admission = {.max_requests = 512, .max_bytes = 2 * kAnswers << 20}});
  const auto take = [this](uint64_t connection, absl::Status& refused) {
    return StartUntilRefused(connection, 512, refused);
  };
  absl::Status refused;
  EXPECT_EQ(take(1, refused), kAnswers * 7 / 8);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("answers that the connection waits for")));
  EXPECT_EQ(stats_.refusals()[static_cast<size_t>(RefusalReason::kShare)], 1);
  EXPECT_EQ(take(2, refused), 1);
  EXPECT_EQ(take(3, refused), 1);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("answers that the caller waits for")));
}

// The audit log counts as refused what was not even launched, however it ended.
TEST_F(ProductRunnerTest, WhatEndsBeforeItBeginsIsAuditedAsDropped) {
  const ScratchFolder folder;
  const std::string path = folder.Path("audit");
  const auto sink = std::make_shared<AuditSink>(*LogFile::Open(path), 1000, clock_);
  SetAuditLog(sink);
  SetLimits({});
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  scheduler_.Cancel({last_id_});
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  scheduler_.Cancel({last_id_});
  device_.CompleteNextWith({.status = absl::CancelledError()});
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  device_.CompleteNextWith({});
  SetAuditLog(nullptr);
  sink->Close(kPatience);
  std::vector<std::string> events;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    events.push_back(
        absl::StrCat(line["event"].get<std::string>(), " ", line["status"].get<std::string>()));
  }
  EXPECT_THAT(events,
              testing::ElementsAre("product_dropped CANCELLED", "product CANCELLED", "product OK"));
}

TEST_F(ProductRunnerTest, LowPriorityWaits) {
  SetLimits({});
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  std::unique_ptr<Product> low = Request(8, 8, 16);
  low->priority = Priority::kLow;
  ASSERT_THAT(Start(std::move(low)), IsOk());
  ASSERT_THAT(Start(Request(8, 8, 8)), IsOk());
  device_.CompleteNextWith({});
  device_.CompleteNextWith({});
  EXPECT_EQ(last_.problem.k, 8);
  device_.CompleteNextWith({});
  EXPECT_EQ(last_.problem.k, 16);
}

// A GPU computes samples that take it little time beside their products; the host computes others.
TEST(VerifyNeedsTest, SamplesOfDevicesAreSmall) {
  DeviceProfile profile{
      .target = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 132},
      .rates = {},
      .memory_bytes_per_second = 3e12};
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    profile.rates.push_back({std::string(kernel.engine), 3e14});
  }
  const auto needs = [&](int64_t extent, const VerifyRule& rule, bool is_on_device = true) {
    Problem problem = Request(extent, extent, extent)->job.problem;
    problem.a.type = problem.b.type = ElementType::kF16;
    const Kernel* const kernel = FindBest(Catalog(DeviceKind::kCuda), problem, {}, profile);
    return NeedsOf(rule, *kernel, problem, is_on_device ? &profile : nullptr).value();
  };
  const auto sampled = [](double rate) {
    return VerifyRule{.mode = VerifyMode::kSampled, .rate = rate};
  };
  const VerifyNeeds usual = needs(4096, sampled(verify::kDefaultRate));
  ASSERT_NE(usual.on_device, nullptr);
  EXPECT_EQ(usual.on_device->instruction->a, ElementType::kF16);
  EXPECT_LT(usual.bytes, 1 << 20);
  EXPECT_LT(usual.predicted_ns, needs(4096, sampled(verify::kDefaultRate), false).predicted_ns);
  EXPECT_EQ(needs(4096, sampled(verify::kDefaultRate), false).on_device, nullptr);
  EXPECT_EQ(needs(4096, sampled(1)).on_device, nullptr);
  EXPECT_EQ(needs(4096, {.mode = VerifyMode::kChecksum}).on_device, nullptr);
  EXPECT_NE(needs(24, sampled(1)).on_device, nullptr);
}

}  // namespace
}  // namespace gemmd
