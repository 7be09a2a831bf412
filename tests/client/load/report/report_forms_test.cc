// SPDX-License-Identifier: Apache-2.0
//
// The contents common to all forms of a report: machines, kernels, verdict, search, and the values
// of curves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/load/report/html_report.h"
#include "client/load/report/report.h"
#include "gemmd/v1/registry.pb.h"
#include "tests/client/load/report/report_sample.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

LoadReport NamedReport() {
  LoadReport report = SampleReport({SampleStep("s", 2000, Steady)});
  report.client = {.host = "laptop", .cpu = "Fast CPU", .cores = 8, .usable_cores = 2.5};
  v1::Device cpu;
  cpu.set_name("cpu");
  cpu.set_description("Big <CPU>");
  cpu.set_threads(96);
  v1::Device gpu;
  gpu.set_name("cuda:0");
  gpu.set_description("Large GPU");
  gpu.set_chip("sm_90");
  gpu.set_multiprocessors(132);
  report.servers = {{"10.0.0.1:8470", "4.5.6", {DescribeDevice(cpu), DescribeDevice(gpu)}}};
  return report;
}

TEST(ReportTest, EveryFormNamesBothMachines) {
  const LoadReport report = NamedReport();
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr("client    gemmload 1.2.3 on laptop, Fast CPU, 2.5 of 8 cores\n"));
  EXPECT_THAT(text, HasSubstr("server    10.0.0.1:8470 (gemmd 4.5.6)\n"
                              "device    cpu: Big <CPU>, 96 threads\n"
                              "device    cuda:0: Large GPU, sm_90, 132 multiprocessors\n"));
  const nlohmann::ordered_json json = ReportJson(report);
  EXPECT_EQ(json["gemmload"], "1.2.3");
  EXPECT_EQ(json["client"]["cpu"], "Fast CPU");
  EXPECT_EQ(json["client"]["cores"], 8);
  EXPECT_EQ(json["servers"][0]["version"], "4.5.6");
  EXPECT_EQ(json["servers"][0]["devices"][1]["name"], "cuda:0");
  const std::string html = ReportHtml(report);
  for (const char* part : {"laptop", "Fast CPU", "2.5 of 8 cores", "10.0.0.1:8470 (gemmd 4.5.6)",
                           "cpu: Big &lt;CPU&gt;, 96 threads", "132 multiprocessors"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(ReportTest, EveryFormHasATableOfKernels) {
  ReportStep step = SampleStep("s", 2000, Steady);
  CallSample other;
  other.ended_ns = 5'000'000;
  other.kernel = "slow_kernel";
  other.device = "cuda:0";
  other.timing.set_compute_ns(3'000'000);
  other.timing.set_total_ns(4'000'000);
  step.result.tally.Add(other);
  const LoadReport report = SampleReport({step});
  const auto kernels = ReportJson(report)["steps"][0]["kernels"];
  ASSERT_EQ(kernels.size(), 2);
  EXPECT_EQ(kernels[0]["kernel"], "a_kernel");
  EXPECT_EQ(kernels[0]["device"], "cpu");
  EXPECT_EQ(kernels[0]["latency"]["count"], 2000);
  EXPECT_EQ(kernels[0]["stage_means_ns"]["compute"], 20'000);
  EXPECT_EQ(kernels[1]["latency"]["p99_ns"], 5'000'000);
  EXPECT_EQ(kernels[1]["stage_means_ns"]["outside"], 1'000'000);
  EXPECT_THAT(ReportText(report),
              AllOf(testing::ContainsRegex("kernel +device +calls +p50 +p99 +mean receive"),
                    testing::ContainsRegex("a_kernel +cpu +2,000 +1.00 ms +1.00 ms"),
                    testing::ContainsRegex("slow_kernel +cuda:0 +1 +5.00 ms +5.00 ms")));
  EXPECT_THAT(ReportHtml(report),
              AllOf(HasSubstr("a_kernel"), HasSubstr("slow_kernel"), HasSubstr("mean copy_out")));
}

TEST(TallyTest, KernelsWithoutEndShareARow) {
  Tally tally;
  for (int i = 0; i < 500; ++i) {
    CallSample sample;
    const std::string name = (i < 100 ? "" : std::string(1000, 'k')) + std::to_string(i);
    sample.kernel = name;
    tally.Add(sample);
  }
  ASSERT_EQ(tally.kernels.size(), kMaxKernels + 1);
  EXPECT_EQ(tally.kernels.back().kernel, kOtherKernels);
  EXPECT_EQ(tally.kernels.back().latency.count(), 500 - static_cast<int64_t>(kMaxKernels));
  Tally twice;
  twice.Merge(tally);
  twice.Merge(tally);
  ASSERT_EQ(twice.kernels.size(), kMaxKernels + 1);
  EXPECT_EQ(twice.kernels.back().latency.count(), 2 * (500 - static_cast<int64_t>(kMaxKernels)));
  Tally longest;
  CallSample sample;
  const std::string name(1000, 'k');
  sample.kernel = name;
  longest.Add(sample);
  EXPECT_EQ(longest.kernels[0].kernel.size(), kMaxTallyNameBytes);
}

TEST(ReportTest, TheVerdictStandsBesideItsWarnings) {
  ReportStep step = SampleStep("1000/s", 385, Steady);
  EXPECT_EQ(SampleReport({step}).Verdict(), "all 385 calls were sent and answered");
  EXPECT_EQ(SampleReport({}).Verdict(), "no call was made");
  for (int i = 0; i < 3; ++i) {
    CallSample failed;
    failed.code = absl::StatusCode::kUnavailable;
    step.result.tally.Add(failed);
  }
  step.result.unsent = 7;
  step.verified = {.is_requested = true, .checked = 5, .exact = 5, .wrong = 1, .first_error = "x"};
  step.warnings = WarningsOf(step, true);
  LoadReport report = SampleReport({step});
  EXPECT_EQ(
      report.Verdict(),
      "1 wrong of 5 checked answers; failed calls: 3 of 388 (UNAVAILABLE 3); 7 calls never sent");
  const std::string text = ReportText(report);
  const std::string end = text.substr(text.find("\nverdict   "));
  EXPECT_THAT(end, HasSubstr("\nwarning: failed calls, left out of the latencies: 3 of 388 "
                             "(UNAVAILABLE 3)\n"));
  EXPECT_THAT(end, HasSubstr("\nwarning: client and server share this machine"));
  EXPECT_THAT(text, Not(HasSubstr("latencies: OK")));
  const std::string html = ReportHtml(report);
  EXPECT_LT(html.find("1 wrong of 5 checked answers"), html.find("<svg"));
  EXPECT_LT(html.find("share this machine"), html.find("<svg"));
  EXPECT_EQ(ReportJson(report)["verdict"], report.Verdict());
  EXPECT_EQ(ReportJson(report)["warnings"].size(), step.warnings.size());
  // Warnings of several steps name them.
  report.steps.push_back(step);
  report.steps[1].name = "2000/s";
  EXPECT_THAT(ReportText(report), HasSubstr("\nwarning: 2000/s: failed calls"));
  // A fact about the whole run is reported once.
  EXPECT_EQ(report.Warnings().size(), 2 * step.warnings.size() - 1);
  EXPECT_THAT(report.Warnings().back(), testing::StartsWith("client and server share"));
  const std::string page = ReportHtml(report);
  EXPECT_EQ(page.find("share this machine"), page.rfind("share this machine"));
  EXPECT_NE(page.find("<li>failed calls"), page.rfind("<li>failed calls"));
}

TEST(ReportTest, CurvesOverTimeEndWithTheirStep) {
  const auto lines_of = [](const std::vector<ReportStep>& steps) {
    const std::string svg = TimePlot(SampleReport(steps));
    size_t lines = 0;
    for (size_t at = svg.find("<polyline"); at != svg.npos; at = svg.find("<polyline", at + 1)) {
      ++lines;
    }
    return lines;
  };
  const ReportStep step = SampleStep("1000/s", 2000, Steady);
  EXPECT_EQ(lines_of({step}), 3);  // p50, p99, maximum.
  EXPECT_EQ(lines_of({step, step}), 6);
  // A step of one interval is one point of each curve.
  const ReportStep one = SampleStep("short", 50, Steady);
  ASSERT_EQ(one.result.intervals.size(), 1);
  const std::string svg = TimePlot(SampleReport({step, one}));
  EXPECT_THAT(svg, testing::ContainsRegex("<circle"));
  EXPECT_EQ(lines_of({step, one}), 3);
  // So are answers that come soon after the end of a step.
  ReportStep late = step;
  late.result.intervals.back().from_ns = late.result.intervals.back().to_ns - 1'000'000;
  EXPECT_THAT(TimePlot(SampleReport({step})), Not(HasSubstr("<circle")));
  EXPECT_THAT(TimePlot(SampleReport({late})), HasSubstr("<circle"));
}

TEST(ReportTest, EveryFormTellsASearch) {
  LoadReport report = SampleReport({SampleStep("1000.0/s", 2000, Steady)});
  SloFindings& slo = report.slo.emplace();
  slo.objective = "p99=2ms";
  slo.rule = "the rule";
  slo.answer = {.end = SloAnswer::End::kFound, .rate = 1010, .low = 980, .high = 1050};
  slo.answer.windows = {{1000, WindowVerdict::kHolds, "1.00 ms"},
                        {2000, WindowVerdict::kDiscarded, "the client is the limit: late"},
                        {1100, WindowVerdict::kFails, "3.00 ms where 2.00 ms is allowed"}};
  const std::string verdict =
      "highest rate that holds: 1010.0/s (95 % interval 980.0/s to 1050.0/s)";
  EXPECT_EQ(report.Verdict(), verdict);
  const std::string text = ReportText(report);
  EXPECT_THAT(text, testing::ContainsRegex("2 +2000.0/s +discarded +the client is the limit"));
  EXPECT_THAT(text.substr(text.find("\nverdict")),
              AllOf(HasSubstr(verdict), HasSubstr("warning: 1 of 3 windows were discarded")));
  const nlohmann::ordered_json json = ReportJson(report)["slo"];
  EXPECT_TRUE(json["conclusive"]);
  EXPECT_EQ(json["rate_per_s"], 1010);
  EXPECT_EQ(json["interval_per_s"], nlohmann::ordered_json::array({980, 1050}));
  EXPECT_EQ(json["confidence"], 0.95);
  EXPECT_EQ(json["windows_discarded"], 1);
  EXPECT_EQ(json["windows"][1]["verdict"], "discarded");
  EXPECT_THAT(ReportHtml(report), AllOf(HasSubstr(verdict), HasSubstr("the client is the limit")));
  const auto verdict_of = [&](SloAnswer::End end) {
    slo.answer.end = end;
    return slo.Verdict();
  };
  EXPECT_THAT(verdict_of(SloAnswer::End::kClientLimit), HasSubstr("inconclusive: 1010.0/s holds"));
  EXPECT_THAT(verdict_of(SloAnswer::End::kTooNoisy),
              HasSubstr("inconclusive: the highest rate that holds is somewhere in 980.0/s to"));
  EXPECT_EQ(verdict_of(SloAnswer::End::kNoRate), "no rate holds");
  EXPECT_THAT(verdict_of(SloAnswer::End::kHopeless), HasSubstr("no rate holds: 3.00 ms where"));
  EXPECT_THAT(verdict_of(SloAnswer::End::kEveryRate), HasSubstr("every tried rate holds"));
  slo.answer = {};
  EXPECT_TRUE(ReportJson(report)["slo"]["interval_per_s"].is_null());
}

// Curves show their values under the pointer, without scripts, network, or an element per point.
TEST(ReportTest, CurvesTellTheirValues) {
  const std::string html = ReportHtml(SampleReport({SampleStep("1000/s", 2000, Steady)}));
  EXPECT_THAT(html, AllOf(HasSubstr("<g class=\"at\">"), HasSubstr(".at:hover .tip"),
                          Not(HasSubstr("<script"))));
  EXPECT_THAT(html, testing::ContainsRegex("1000/s from intended send: p[0-9.]+ 1.00 ms"));
  EXPECT_THAT(html, HasSubstr("p99: 1.00 ms at 0.5 s, 1000/s"));
  // A phone gets larger letters, and no figure wider than its screen.
  EXPECT_THAT(html, AllOf(HasSubstr("@media (max-width: 640px)"), HasSubstr("min(100%, 480px)")));
}

}  // namespace
}  // namespace gemmd
