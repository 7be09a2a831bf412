// SPDX-License-Identifier: Apache-2.0
//
// A caller that requests one product after the other, beside a caller that always has 400 in
// progress, in simulated time: how long the first caller waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/product/scheduler.h"
#include "tests/server/product/timed_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/test_kernel.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

constexpr int kHogsCalls = 400;
constexpr uint64_t kHogsConnections = 4;
constexpr int kLightCalls = 300;

struct Callers {
  int64_t light_ns = 0;        // Time of a product of the light caller,
  int64_t hog_ns = 0;          // and of one of the hog.
  double hogs_prediction = 1;  // The ratio of the prediction for its products to their time.
  int depth = 1;
  bool is_one_host = false;  // Both callers' connections belong to one host.
};

struct Served {
  double answered = 0;
  int64_t p99_ns = 0;
};

class CallersSimulation {
 public:
  explicit CallersSimulation(const Callers& callers) : callers_(callers) {
    RunInTime(device_, clock_, end_ns_);
  }

  Served Run() {
    int64_t call_ns = clock_.NowNs() + 100 * kMs;
    while (asked_ < kLightCalls || light_is_inside_) {
      FillUp();
      const int64_t next_ns = std::min(light_is_inside_ ? kNoDeadlineNs : call_ns, end_ns_);
      clock_.Advance(next_ns - clock_.NowNs());
      if (next_ns == end_ns_) {
        device_.CompleteNext();
        if (!light_is_inside_ && call_ns < clock_.NowNs()) call_ns = clock_.NowNs() + PauseNs();
      } else {
        Call();
      }
    }
    scheduler_.Stop(absl::UnavailableError("over"));
    std::sort(waits_ns_.begin(), waits_ns_.end());
    const size_t count = waits_ns_.size();
    return {.answered = static_cast<double>(count) / kLightCalls,
            .p99_ns = count == 0 ? 0 : waits_ns_[(count - 1) * 99 / 100]};
  }

 private:
  // Out of step with the hog's products.
  int64_t PauseNs() { return (asked_ * 7919 % 1000) * callers_.hog_ns / 500; }

  bool Submit(const FlowId& flow, int64_t service_ns, int64_t predicted_ns,
              absl::AnyInvocable<void(const absl::Status&) &&> done) {
    auto service = std::make_unique<int64_t>(service_ns);
    auto pieces = std::make_unique<SourcePieces>();
    auto owned = std::make_unique<Submission>();
    Submission& submission = *owned;
    submission.device = &device_;
    submission.job = TestJob(&d_);
    // The errors of predictions for one kernel are alike within a shape class, so the hog's
    // products get another class.
    if (predicted_ns != service_ns) submission.job.problem.batch = 100;
    scheduler_.SetTime(submission, {.kernel_ns = predicted_ns});
    submission.job.a =
        pieces->Add({reinterpret_cast<const std::byte*>(service.get()), sizeof(int64_t)});
    submission.caller = flow.caller;
    submission.connection = flow.connection;
    submission.done = [done = std::move(done), service = std::move(service),
                       pieces = std::move(pieces)](std::unique_ptr<Submission> result) mutable {
      std::move(done)(result->outcome.status);
    };
    return scheduler_.SubmitTogether(Alone(std::move(owned)), &admission_).empty();
  }

  // Calls alternate among the hog's connections.
  uint64_t NextConnection() { return 1 + hogs_calls_++ % kHogsConnections; }

  void FillUp() {
    const auto predicted_ns =
        static_cast<int64_t>(static_cast<double>(callers_.hog_ns) * callers_.hogs_prediction);
    while (hogs_inside_ < kHogsCalls) {
      const FlowId hog = {.caller = "hog", .connection = NextConnection()};
      if (!Submit(hog, callers_.hog_ns, predicted_ns,
                  [this](const absl::Status& /*status*/) { --hogs_inside_; })) {
        return;  // It was told to retry later.
      }
      ++hogs_inside_;
    }
  }

  void Call() {
    ++asked_;
    const FlowId light = {.caller = callers_.is_one_host ? "hog" : "light", .connection = 0};
    light_is_inside_ = Submit(light, callers_.light_ns, callers_.light_ns,
                              [this, called_ns = clock_.NowNs()](const absl::Status& status) {
                                light_is_inside_ = false;
                                if (status.ok()) waits_ns_.push_back(clock_.NowNs() - called_ns);
                              });
  }

  const Callers callers_;
  Admission admission_{{.max_requests = int64_t{1} << 40, .max_bytes = 0}};
  FakeClock clock_;
  int64_t end_ns_ = kNoDeadlineNs;  // Of the running product.
  ScriptedDevice device_{"timed", {}, callers_.depth};
  std::vector<Device*> devices_ = {&device_};
  Scheduler scheduler_{devices_, clock_};
  std::string d_;
  int hogs_inside_ = 0;
  uint64_t hogs_calls_ = 0;
  int asked_ = 0;
  bool light_is_inside_ = false;
  std::vector<int64_t> waits_ns_;
};

std::string Describe(const Callers& callers, const Served& served) {
  std::ostringstream text;
  text << "products of " << callers.light_ns << " ns beside some of " << callers.hog_ns
       << ", predicted to take " << callers.hogs_prediction << " times that: answered "
       << served.answered << ", p99 " << served.p99_ns << " ns";
  return text.str();
}

void ExpectServed(const Callers& callers, int64_t max_ns) {
  const Served served = CallersSimulation(callers).Run();
  EXPECT_GE(served.answered, 0.95);
  EXPECT_GT(served.p99_ns, 0);
  EXPECT_LE(served.p99_ns, max_ns) << Describe(callers, served);
  std::cout << Describe(callers, served) << ", at most " << max_ns << " ns\n";
}

// Whatever the hog's products and their predictions are.
void ExpectServedBesideAnyHog(int depth, bool is_one_host) {
  for (const double prediction : {0.2, 1.0, 5.0}) {
    for (const int64_t hog_ns : {kMs, 20 * kMs, 100 * kMs}) {
      for (const int64_t light_ns : {kMs, 20 * kMs}) {
        ExpectServed({.light_ns = light_ns,
                      .hog_ns = hog_ns,
                      .hogs_prediction = prediction,
                      .depth = depth,
                      .is_one_host = is_one_host},
                     2 * light_ns + hog_ns);
      }
    }
  }
}

TEST(LightCallerTest, WaitsForOneProductBesideAHog) { ExpectServedBesideAnyHog(1, false); }

TEST(LightCallerTest, WaitsForOneProductBesideAHogOfItsHost) { ExpectServedBesideAnyHog(1, true); }

// Jobs that the device holds no longer take turns, but it holds few if light products could come.
TEST(LightCallerTest, WaitsForOneProductBesideAHogOfADeepDevice) {
  ExpectServedBesideAnyHog(24, false);
}

TEST(LightCallerTest, WaitsForOneProductBesideAHogOfItsHostAndADeepDevice) {
  ExpectServedBesideAnyHog(24, true);
}

// Work of 0.3 ms hides the latency of reaching the device, so the device always gets that much.
TEST(LightCallerTest, WaitsForLittleWhereItsProductsAreTiny) {
  ExpectServed({.light_ns = kMs / 50, .hog_ns = kMs / 20, .depth = 24},
               2 * kMs / 50 + kMs / 20 + 3 * kMs / 10);
}

}  // namespace
}  // namespace gemmd
