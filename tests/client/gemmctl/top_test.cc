// SPDX-License-Identifier: Apache-2.0
//
// gemmctl top: rates between two statistics, and how they are displayed.
#include "client/gemmctl/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "client/terminal/text.h"
#include "gemmd/v1/statistics.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

void AddCount(const std::string& name, int64_t count,
              google::protobuf::RepeatedPtrField<v1::Count>& counts) {
  v1::Count* const made = counts.Add();
  made->set_name(name);
  made->set_count(count);
}

// Statistics after `seconds` of 10 products a second, of which 1 fails.
v1::GetStatisticsResponse After(int64_t seconds) {
  v1::GetStatisticsResponse statistics;
  statistics.set_uptime_ns(seconds * 1'000'000'000);
  statistics.set_started_unix_ns(1'700'000'000'000'000'000);
  statistics.set_admitted_requests(3);
  statistics.set_max_admitted_requests(256);
  statistics.set_admissions(10 * seconds);
  AddCount("queue_bytes", 2 * seconds, *statistics.mutable_refusals());
  AddCount("invalid", seconds, *statistics.mutable_refusals());
  v1::DeviceStatistics& device = *statistics.add_devices();
  device.set_name("cuda:0");
  device.set_ready(true);
  device.set_queued_requests(7);
  AddCount("OK", 9 * seconds, *device.mutable_ends());
  AddCount("ABORTED", seconds, *device.mutable_ends());
  AddCount("CANCELLED", 50 * seconds, *device.mutable_ends());
  device.set_operations(5'000'000'000'000 * seconds);
  device.set_bytes_read(int64_t{3} * (1 << 20) * seconds);
  device.set_busy_ns(250'000'000 * seconds);
  for (const int64_t bound : {1'000, 1'000'000}) device.mutable_total()->add_bounds_ns(bound);
  for (const int64_t count : {8 * seconds, seconds, int64_t{0}}) {
    device.mutable_total()->add_counts(count);
  }
  return statistics;
}

void AddKernel(const std::string& name, int64_t products, int64_t compute_ns,
               v1::GetStatisticsResponse& statistics) {
  v1::KernelStatistics& kernel = *statistics.add_kernels();
  kernel.set_device_kind("cuda");
  kernel.set_name(name);
  kernel.set_products(products);
  kernel.set_compute_ns(compute_ns);
}

TEST(TopTest, ShowsTheKernelsThatRan) {
  v1::GetStatisticsResponse before = After(8);
  AddKernel("idle", 5, 5'000'000, before);
  AddKernel("light", 100, 1'000'000, before);
  v1::GetStatisticsResponse now = After(10);
  AddKernel("idle", 5, 5'000'000, now);
  AddKernel("light", 120, 2'000'000, now);
  AddKernel("heavy", 4, 1'000'000'000, now);
  const ActivityRates rates = RatesBetween(before, now);
  EXPECT_THAT(TopText("a", now, rates),
              AllOf(ContainsRegex("heavy +cuda +2 +100 % +250 ms\nlight +cuda +10 +0 % +50.0 us"),
                    Not(HasSubstr("idle"))));
  const auto json = TopJson(now, rates);
  ASSERT_EQ(json["kernels"].size(), 2U);
  EXPECT_EQ(json["kernels"][0]["kernel"], "heavy");
  EXPECT_EQ(json["kernels"][0]["computing"], 0.5);
  for (int i = 0; i < 9; ++i) AddKernel("k" + std::to_string(i), 1, 1, now);
  EXPECT_THAT(TopText("a", now, RatesBetween(before, now)), HasSubstr("3 more kernels"));
}

// Several devices of a kind, and several lanes of one, compute more than a second per second.
TEST(TopTest, SharesOfComputingAreNeverMoreThanAll) {
  v1::GetStatisticsResponse now = After(10);
  AddKernel("long", 4, 30'000'000'000, now);
  AddKernel("short", 4, 10'000'000'000, now);
  AddKernel("simulated", 1, 1'000'000'000, now);
  now.mutable_kernels(2)->set_device_kind("sim");
  EXPECT_THAT(TopText("a", now, RatesBetween(After(8), now)),
              AllOf(ContainsRegex("long +cuda +2 +75 % "), ContainsRegex("short +cuda +2 +25 % "),
                    ContainsRegex("simulated +sim +0.5 +100 % ")));
}

TEST(TopTest, ShowsTensorsWhereTheServerKeepsThem) {
  v1::GetStatisticsResponse now = After(10);
  const ActivityRates rates = RatesBetween(After(9), now);
  EXPECT_THAT(TopText("a", now, rates), Not(HasSubstr("tensors")));
  now.mutable_tensors()->set_tensors(1234);
  now.mutable_tensors()->set_sessions(2);
  now.mutable_tensors()->set_host_bytes(int64_t{3} << 30);
  now.mutable_tensors()->set_max_host_bytes(int64_t{4} << 30);
  now.mutable_tensors()->set_uploads_known(7);
  v1::OwnerStatistics& owner = *now.mutable_tensors()->add_owners();
  owner.set_name("0123456789abcdef");
  owner.set_tensors(12);
  owner.set_host_bytes(int64_t{2} << 30);
  owner.set_caller("ipv4:10.0.0.7");
  EXPECT_THAT(TopText("a", now, rates),
              AllOf(HasSubstr("tensors  1,234 of 2 sessions, 3.00 GiB of 4.00 GiB on the host"),
                    HasSubstr("7 known"), Not(HasSubstr("evicted")),
                    ContainsRegex("0123456789abcdef +12 +2.00 GiB +ipv4:10.0.0.7")));
  now.mutable_devices(0)->set_tensor_bytes(1 << 20);
  now.mutable_devices(0)->set_tensor_hits(55);
  now.mutable_devices(0)->set_tensors_evicted(3);
  const std::string text = TopText("a", now, rates);
  EXPECT_THAT(text, HasSubstr("evicted"));
  EXPECT_THAT(text.substr(text.rfind("cuda:0")),
              AllOf(HasSubstr("1.00 MiB"), HasSubstr("55"), HasSubstr("3")));
}

TEST(TopTest, ShowsWhatRanAsOne) {
  v1::GetStatisticsResponse now = After(10);
  const ActivityRates rates = RatesBetween(After(9), now);
  EXPECT_THAT(TopText("a", now, rates), Not(HasSubstr("ran as one")));
  v1::DeviceStatistics& device = *now.mutable_devices(0);
  device.set_launches(20);
  device.set_stacked_products(1234);
  for (const int64_t count : {3, 0, 17, 0, 0}) device.add_launches_by_products(count);
  EXPECT_THAT(TopText("a", now, rates), ContainsRegex("cuda:0 +20 +1,234 +0 +4\n"));
  device.set_launches_by_products(4, 1);
  EXPECT_THAT(TopText("a", now, rates), ContainsRegex("cuda:0 +20 +1,234 +0 +more\n"));
}

TEST(RatesTest, AreDifferencesOverTheServersOwnTime) {
  const ActivityRates rates = RatesBetween(After(10), After(14));
  EXPECT_EQ(rates.seconds, 4);
  EXPECT_EQ(rates.admissions_per_second, 10);
  EXPECT_EQ(rates.refusals_per_second, 3);
  ASSERT_EQ(rates.devices.size(), 1U);
  EXPECT_EQ(rates.devices[0].products_per_second, 9);
  EXPECT_EQ(rates.devices[0].failures_per_second, 1);
  EXPECT_EQ(rates.devices[0].operations_per_second, 5e12);
  EXPECT_EQ(rates.devices[0].bytes_in_per_second, 3 << 20);
  EXPECT_EQ(rates.devices[0].busy, 0.25);
  EXPECT_EQ(rates.devices[0].p50_ns, 1'000);
  EXPECT_EQ(rates.devices[0].p99_ns, 1'000'000);
}

// Even if it has been up for longer than the previous one had.
TEST(RatesTest, OfAServerThatStartedAnewAreThoseSinceItsStart) {
  for (const int64_t uptime : {2, 200}) {
    v1::GetStatisticsResponse now = After(uptime);
    now.set_started_unix_ns(1'700'000'000'000'000'001);
    const ActivityRates rates = RatesBetween(After(100), now);
    EXPECT_EQ(rates.seconds, uptime);
    EXPECT_EQ(rates.devices[0].products_per_second, 9);
  }
}

TEST(RatesTest, WithoutTimeOrProductsAreNone) {
  const ActivityRates rates = RatesBetween(After(5), After(5));
  EXPECT_EQ(rates.admissions_per_second, 0);
  EXPECT_EQ(rates.devices[0].products_per_second, 0);
  EXPECT_EQ(rates.devices[0].p99_ns, std::nullopt);
}

TEST(RatesTest, BeyondTheLastBoundThereIsNone) {
  v1::GetStatisticsResponse now = After(1);
  now.mutable_devices(0)->mutable_total()->set_counts(2, 1'000);
  EXPECT_EQ(RatesBetween({}, now).devices[0].p99_ns, DeviceRates::kBeyondBounds);
  const auto json = TopJson(now, RatesBetween({}, now));
  EXPECT_TRUE(json["rates"][0]["p99_ns"].is_null());
  EXPECT_TRUE(json["rates"][0]["p50_ns"].is_null());
  EXPECT_THAT(TopText("x", now, RatesBetween({}, now)), HasSubstr("more"));
}

TEST(TopTest, ShowsGpusWhereThereAreReadings) {
  v1::GetStatisticsResponse now = After(1);
  EXPECT_THAT(TopText("x", now, RatesBetween({}, now)), Not(HasSubstr("SM clock")));
  now.mutable_devices(0)->mutable_gpu()->set_power_watts(512.25);
  now.mutable_devices(0)->mutable_gpu()->set_power_limit_watts(700);
  now.mutable_devices(0)->mutable_gpu()->set_sm_clock_hertz(1'755'000'000);
  EXPECT_THAT(TopText("x", now, RatesBetween({}, now)),
              AllOf(HasSubstr("512 of 700 W"), HasSubstr("1.755 GHz")));
}

TEST(TopTest, IdleSimulatorsAreHiddenUntilTheyDoSomething) {
  v1::GetStatisticsResponse now = After(1);
  v1::DeviceStatistics& simulator = *now.add_devices();
  simulator.set_name("sim:sm_90");
  TopOptions options;
  EXPECT_THAT(TopText("x", now, RatesBetween({}, now), options),
              AllOf(HasSubstr("1 idle simulator not shown"), Not(HasSubstr("sim:sm_90"))));
  options.all = true;
  EXPECT_THAT(TopText("x", now, RatesBetween({}, now), options),
              AllOf(Not(HasSubstr("not shown")), HasSubstr("sim:sm_90")));
  options.all = false;
  // A device that is idle now but was not within the minutes that the bars show stays displayed.
  AddCount("OK", 5, *simulator.mutable_ends());
  options.history.Add(now, RatesBetween({}, now));
  EXPECT_THAT(TopText("x", now, RatesBetween(now, now), options), HasSubstr("sim:sm_90"));
  simulator.clear_ends();
  simulator.set_queued_requests(1);
  EXPECT_THAT(TopText("x", now, RatesBetween({}, now)), HasSubstr("sim:sm_90"));
}

TEST(TopTest, SortsDevices) {
  v1::GetStatisticsResponse now = After(1);
  v1::DeviceStatistics& other = *now.add_devices();
  other.set_name("cpu");
  other.set_busy_ns(900'000'000);
  const ActivityRates rates = RatesBetween({}, now);
  const auto is_first = [&](TopSort sort) {
    TopOptions options;
    options.sort = sort;
    const std::string text = TopText("x", now, rates, options);
    return text.find("cpu") < text.find("cuda:0");
  };
  EXPECT_FALSE(is_first(TopSort::kServer));
  EXPECT_TRUE(is_first(TopSort::kBusy));
  EXPECT_FALSE(is_first(TopSort::kProducts));
  EXPECT_FALSE(is_first(TopSort::kWaiting));
}

TEST(TopTest, HistoryTakesTheRoomThatIsLeft) {
  const v1::GetStatisticsResponse now = After(1);
  TopOptions options;
  for (int i = 0; i < 300; ++i) options.history.Add(now, RatesBetween({}, now));
  const auto bars = [&](int columns) {
    options.columns = columns;
    const std::string text = TopText("x", now, RatesBetween({}, now), options);
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      EXPECT_LE(ColumnsOf(text.substr(at, text.find('\n', at) - at)), columns);
    }
    return std::count(text.begin(), text.end(), '\x88');
  };
  EXPECT_EQ(bars(60), 0);
  EXPECT_GE(bars(64), 16);
  EXPECT_GE(bars(80), 16);
  EXPECT_EQ(bars(1000), 120);
}

TEST(TopTest, ShowsTheServerAndItsRates) {
  const ActivityRates rates = RatesBetween(After(1), After(2));
  EXPECT_THAT(TopText("a", After(2), rates),
              AllOf(HasSubstr("gemmd a"), HasSubstr("serving"), HasSubstr("admitted 3 of 256"),
                    HasSubstr("10/s admitted"), HasSubstr("3/s refused"), HasSubstr("5.00 TFLOP/s"),
                    HasSubstr("25 %"), HasSubstr("cuda:0"), Not(HasSubstr("\x1b"))));
  const auto json = TopJson(After(2), rates);
  EXPECT_EQ(json["interval_seconds"], 1);
  EXPECT_EQ(json["rates"][0]["device"], "cuda:0");
  EXPECT_EQ(json["rates"][0]["products_per_second"], 9);
  EXPECT_EQ(json["statistics"]["devices"][0]["queued_requests"], 7);
}

// A restart of the server does not end the display.
TEST(TopTest, GoesOnWithoutAnAnswer) {
  std::atomic<int64_t> calls = 0;
  FakeScript script;
  script.get_statistics = [&calls](v1::GetStatisticsResponse& response) {
    const int64_t call = ++calls;
    response = After(call);
    // The client tries five times before it gives up.
    if (call >= 2 && call <= 6) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "away for a moment");
    }
    return call < 9 ? grpc::Status::OK : grpc::Status(grpc::StatusCode::INTERNAL, "enough");
  };
  FakeServer server(script);
  const Outcome text = RunGemmctl({"top", "--interval", "1ms"}, server.address());
  EXPECT_EQ(text.code, ExitCode::kRefused);
  EXPECT_THAT(text.err, HasSubstr("enough"));
  EXPECT_THAT(text.out, AllOf(HasSubstr("no answer: away for a moment\n"),
                              HasSubstr("10/s admitted"), Not(HasSubstr("\x1b"))));
  calls = 0;
  const Outcome json = RunGemmctl({"top", "--json", "--interval", "1ms"}, server.address());
  EXPECT_THAT(json.out, HasSubstr("{\"no_answer\":{\"code\":\"UNAVAILABLE\","));
  calls = 1;
  const Outcome once = RunGemmctl({"top", "--once", "--interval", "1ms"}, server.address());
  EXPECT_EQ(once.code, ExitCode::kUnreachable);
  calls = 6;
  EXPECT_EQ(RunGemmctl({"top", "--once", "--interval", "1ms"}, server.address()).code,
            ExitCode::kOk);
  EXPECT_EQ(calls, 8);
}

TEST(TopTest, EndsWhereTheServerDoes) {
  std::atomic<int64_t> seconds = 0;
  FakeScript script;
  script.get_statistics = [&seconds](v1::GetStatisticsResponse& response) {
    response = After(++seconds);
    return seconds < 4 ? grpc::Status::OK
                       : grpc::Status(grpc::StatusCode::INTERNAL, "the end of it");
  };
  FakeServer server(script);
  const Outcome outcome = RunGemmctl({"top", "--json", "--interval", "1ms"}, server.address());
  EXPECT_EQ(outcome.code, ExitCode::kRefused);
  EXPECT_THAT(outcome.err, HasSubstr("the end of it"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2);
}

TEST(TopTest, RefusesABadInterval) {
  for (const char* interval : {"0", "-1s", "soon", "inf"}) {
    const Outcome outcome = RunGemmctl({"top", "--interval", interval}, "127.0.0.1:1");
    EXPECT_EQ(outcome.code, ExitCode::kUsage);
    EXPECT_THAT(outcome.err, HasSubstr("--interval: got "));
  }
}

v1::CallerStatistics& AddCaller(const std::string& rule, int64_t answered, int64_t compute_ns,
                                v1::GetStatisticsResponse& statistics) {
  v1::CallerStatistics& caller = *statistics.add_callers();
  caller.set_rule(rule);
  caller.set_answered(answered);
  caller.set_compute_ns(compute_ns);
  return caller;
}

v1::GetStatisticsResponse At(int64_t seconds) {
  v1::GetStatisticsResponse statistics;
  statistics.set_uptime_ns(seconds * 1'000'000'000);
  statistics.set_started_unix_ns(1);
  return statistics;
}

TEST(TopCallersTest, ShowsThoseWhoHadProductsOrHaveTensors) {
  v1::GetStatisticsResponse before = At(8);
  AddCaller("light", 100, 1'000'000'000, before).set_refused(3);
  AddCaller("idle", 7, 5'000'000'000, before);
  v1::GetStatisticsResponse now = At(10);
  v1::CallerStatistics& light = AddCaller("light", 120, 1'200'000'000, now);
  light.set_refused(13);
  light.set_failed(2);
  AddCaller("idle", 7, 5'000'000'000, now);
  AddCaller("holds", 0, 0, now).set_tensor_bytes(3 << 20);
  AddCaller("team/*", 4, 1'000'000'000, now);
  const ActivityRates rates = RatesBetween(before, now);
  ASSERT_EQ(rates.callers.size(), 3U);
  EXPECT_EQ(rates.callers[0].rule, "team/*");
  EXPECT_EQ(rates.callers[1].products_per_second, 10);
  EXPECT_EQ(rates.callers[1].failures_per_second, 1);
  EXPECT_EQ(rates.callers[1].refusals_per_second, 5);
  EXPECT_DOUBLE_EQ(rates.callers[1].computing, 0.1);
  const std::string text = TopText("a", now, rates);
  EXPECT_THAT(
      text, AllOf(ContainsRegex("team/. +2 +0 +0 +83 % +0 B\nlight +10 +1 +5 +17 % +0 B\nholds +0 "
                                "+0 +0 +0 % +3.00 MiB\n"),
                  Not(HasSubstr("idle"))));
  const auto json = TopJson(now, rates)["callers"];
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json[1]["rule"], "light");
  EXPECT_EQ(json[1]["refusals_per_second"], 5);
  EXPECT_DOUBLE_EQ(json[1]["computing"], 0.1);
  EXPECT_DOUBLE_EQ(json[1]["share_of_computing"], 0.1 / 0.6);
  EXPECT_EQ(json[2]["tensor_bytes"], 3 << 20);
}

TEST(TopCallersTest, AreAsManyAndAsWideAsFit) {
  EXPECT_EQ(CallersText({}, 80), "");
  EXPECT_THAT(TopText("a", At(10), RatesBetween(At(8), At(10))), Not(HasSubstr("caller")));
  std::vector<CallerRates> callers;
  for (int i = 0; i < 9; ++i) callers.push_back({.rule = "rule" + std::to_string(i)});
  const std::string text = CallersText(callers, 50);
  EXPECT_THAT(text, AllOf(HasSubstr("rule7"), Not(HasSubstr("rule8")), HasSubstr("1 more caller\n"),
                          Not(HasSubstr("failed/s"))));
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    EXPECT_LE(ColumnsOf(text.substr(at, text.find('\n', at) - at)), 50);
  }
}

}  // namespace
}  // namespace gemmd
