// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "client/load/live_view.h"
#include "client/load/report/html_report.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/load/report/report_sample.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(TallyTest, ClocksStageAndFailures) {
  const Tally tally = SampleStep("s", 2000, Steady).result.tally;
  EXPECT_EQ(tally.latency.min_ns(), 1'000'000);
  EXPECT_EQ(tally.service.min_ns(), 990'000);
  EXPECT_EQ(tally.send_error.max_ns(), 10'000);
  EXPECT_EQ(tally.stages[kCompute].max_ns(), 20'000);
  EXPECT_EQ(tally.stages[kOutside].max_ns(), 965'000);  // service - total
  EXPECT_EQ(tally.operations, 2'000'000);
  EXPECT_EQ(tally.latency_by_product[1].count(), 1000);
}

TEST(TallyTest, MergesEverything) {
  const Tally part = SampleStep("s", 300, Steady).result.tally;
  CallSample failed;
  failed.code = absl::StatusCode::kUnavailable;
  Tally whole;
  whole.Add(failed);
  whole.Merge(part);
  whole.Merge(part);
  EXPECT_EQ(whole.calls(), 601);
  EXPECT_EQ(whole.failed(), 1);
  EXPECT_EQ(CodesText(whole.calls_by_code), "OK 600, UNAVAILABLE 1");
  EXPECT_EQ(whole.latency.count(), 600);
  EXPECT_EQ(whole.failed_latency.count(), 1);
  EXPECT_EQ(whole.blocked.count(), 601);
  EXPECT_EQ(whole.stages[kTotal].count(), 600);
  EXPECT_EQ(whole.latency_by_product[0].count(), 300);
  EXPECT_EQ(whole.bytes, 60'000);
}

TEST(ReportTest, TextNamesBothClocksAndCounts) {
  const std::string text = ReportText(SampleReport({SampleStep("1000/s", 2000, Steady)}));
  EXPECT_THAT(text, HasSubstr("from intended send  from actual send  calls above"));
  EXPECT_THAT(text, HasSubstr("OK 2,000"));
  EXPECT_THAT(text, HasSubstr("p99.99"));
  EXPECT_THAT(text, HasSubstr("compute (server)"));
}

TEST(ReportTest, JsonHoldsWhatTheTextDoes) {
  ReportStep sample = SampleStep("1000/s", 2000, Steady);
  sample.verified.checked_by_product = {7, 3};
  const LoadReport report = SampleReport({sample});
  const nlohmann::ordered_json json = ReportJson(report);
  const auto& step = json["steps"][0];
  EXPECT_EQ(step["calls"], 2000);
  EXPECT_EQ(step["calls_by_status"]["OK"], 2000);
  EXPECT_EQ(step["latency"]["count"], 2000);
  EXPECT_EQ(step["latency"]["p99.99_ns"], step["latency"]["most_ns"]);
  int64_t bucketed = 0;
  for (const auto& bucket : step["latency"]["buckets"]) bucketed += bucket[1].get<int64_t>();
  EXPECT_EQ(bucketed, 2000);
  EXPECT_EQ(step["stages"]["compute"]["most_ns"], 20'000);
  EXPECT_EQ(step["intervals"].size(), 20);
  EXPECT_EQ(step["products"]["64x64x64 f32"]["checked"], 7);
}

TEST(ReportTest, CsvHasAsManyCellsAsHeadings) {
  const std::string csv =
      ReportCsv(SampleReport({SampleStep("a", 10, Steady), SampleStep("b", 10, Steady)}));
  std::vector<std::string> lines = absl::StrSplit(csv, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3);
  for (const std::string& line : lines) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','),
              std::count(lines[0].begin(), lines[0].end(), ','));
  }
}

TEST(ReportTest, HtmlIsSelfContainedAndEscaped) {
  const std::string html = ReportHtml(
      SampleReport({SampleStep("1000/s", 2000, Steady), SampleStep("<2000/s>", 100, Steady)}));
  for (const char* outside : {"http://", "https://", "src=", "href=", "@import", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(html, HasSubstr("&lt;a&amp;b&gt;.json"));
  EXPECT_THAT(html, HasSubstr("&lt;b&gt;&amp;&quot;&#39;"));
  EXPECT_THAT(html, Not(HasSubstr("<2000/s>")));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf")));
  for (const char* plot : {"Latency percentiles", "Latency over time", "Rate against latency",
                           "Where a call&#39;s time goes"}) {
    EXPECT_THAT(html, HasSubstr(plot));
  }
}

TEST(ReportTest, ReportsOfNothingAreReportsToo) {
  ReportStep empty;
  empty.name = "nothing";
  const LoadReport report = SampleReport({empty});
  EXPECT_THAT(ReportText(report), HasSubstr("nothing"));
  EXPECT_THAT(ReportHtml(report), Not(HasSubstr("nan")));
  EXPECT_EQ(ReportJson(report)["steps"][0]["calls"], 0);
}

TEST(WarningsTest, AreSilentForAGoodRun) {
  EXPECT_THAT(WarningsOf(SampleStep("s", 2000, Steady), false), IsEmpty());
}

TEST(WarningsTest, NameTheClientAsTheLimit) {
  ReportStep busy = SampleStep("s", 2000, Steady);
  busy.result.client_cores = 1.7;
  EXPECT_THAT(WarningsOf(busy, false),
              ElementsAre("the client is the limit: it kept 1.7 of 2 cores busy"));
  ReportStep late = SampleStep("s", 2000, Steady);
  late.result.tally.send_error.Record(5'000'000, 100);
  EXPECT_THAT(WarningsOf(late, false), Contains(HasSubstr("1 % of the calls more than 5.00 ms")));
}

TEST(WarningsTest, NameEverythingElse) {
  ReportStep step = SampleStep("s", 20, Steady);
  CallSample failed;
  failed.code = absl::StatusCode::kUnavailable;
  failed.admitted_ns = failed.sent_ns = 1000;
  step.result.tally.Add(failed);
  step.result.first_messages[absl::StatusCode::kUnavailable] = "drains";
  step.result.unsent = 7;
  step.result.rate = 900;
  step.result.was_interrupted = true;
  step.verified = {.checked = 5, .exact = 5, .wrong = 1, .first_error = "x: d[0, 0, ...]"};
  EXPECT_THAT(
      WarningsOf(step, true),
      ElementsAre(HasSubstr("interrupted"), HasSubstr("UNAVAILABLE 1"),
                  HasSubstr("first UNAVAILABLE: drains"), HasSubstr("wrong answers: 1 of 5"),
                  HasSubstr("7 calls were never sent"), HasSubstr("1 calls waited for the limit"),
                  HasSubstr("share this machine"), HasSubstr("only 20 calls")));
}

TEST(WarningsTest, TellABacklogFromLatency) {
  const auto behind = HasSubstr("latencies grow with the length of the run");
  // 200 of 2000 calls in 2 s are not answered, and latencies grow to 200 ms.
  ReportStep growing = SampleStep("s", 2000, [](int64_t call) { return call * 100'000; });
  growing.result.rate = 900;
  EXPECT_THAT(WarningsOf(growing, false), Contains(HasSubstr("900.0/s were answered of 1000.0/s")));
  growing.result.was_interrupted = true;
  EXPECT_THAT(WarningsOf(growing, false), Not(Contains(behind)));
  // A steady latency of half the run leaves half of the calls open at its end.
  ReportStep steady = SampleStep("s", 2000, [](int64_t) { return 1'000'000'000; });
  steady.result.rate = 500;
  EXPECT_THAT(WarningsOf(steady, false), Not(Contains(behind)));
}

TEST(WarningsTest, NameAnswersThatWereNotChecked) {
  ReportStep step = SampleStep("s", 2000, Steady);
  step.verified = {.is_requested = true, .checked = 100, .skipped = 99};
  EXPECT_THAT(WarningsOf(step, false), IsEmpty());
  EXPECT_THAT(ReportText(SampleReport({step})), HasSubstr("0 wrong; 99 skipped"));
  step.verified.skipped = 101;
  EXPECT_THAT(WarningsOf(step, false), ElementsAre(HasSubstr("101 answers came faster")));
  step.verified = {.is_requested = true};
  EXPECT_THAT(WarningsOf(step, false), ElementsAre("no answer was checked"));
  step.verified = {};
  EXPECT_THAT(WarningsOf(step, false), IsEmpty());
  EXPECT_THAT(ReportText(SampleReport({step})), HasSubstr("checked   no answer"));
}

TEST(ReportTest, FailedCallsHaveALatencyToo) {
  ReportStep step = SampleStep("s", 20, Steady);
  EXPECT_THAT(ReportText(SampleReport({step})), Not(HasSubstr("latency of failed calls")));
  CallSample failed;
  failed.code = absl::StatusCode::kUnavailable;
  failed.ended_ns = 7'000'000;
  step.result.tally.Add(failed);
  EXPECT_THAT(ReportText(SampleReport({step})),
              testing::ContainsRegex("latency of failed calls +7.00 ms"));
  EXPECT_THAT(ReportHtml(SampleReport({step})), AllOf(HasSubstr("latency of failed calls"),
                                                      HasSubstr("21 calls: OK 20, UNAVAILABLE")));
}

TEST(ReportTest, UnitsSayWhatTheOperationsAre) {
  Mix mix(1);
  EXPECT_EQ(OperationUnit(mix), "FLOP/s");
  mix[0].is_sparse = true;
  EXPECT_EQ(OperationUnit(mix), "FLOP/s (dense-equivalent)");
  mix.resize(2);
  mix[1].type = v1::ELEMENT_TYPE_S8;
  EXPECT_EQ(OperationUnit(mix), "OP/s (dense-equivalent)");
  LoadReport report = SampleReport({SampleStep("s", 2000, Steady)});
  report.operation_unit = "OP/s";
  EXPECT_THAT(ReportText(report), AllOf(HasSubstr(" MOP/s"), Not(HasSubstr("FLOP/s"))));
}

TEST(ReportTest, AnInterruptionIsNotTheEnd) {
  SloFindings slo;
  EXPECT_EQ(slo.Verdict(), "search interrupted before any rate held");
  slo.answer.rate = 80;
  EXPECT_EQ(slo.Verdict(), "search interrupted; at least 80.0/s holds");
  LoadReport report = SampleReport({SampleStep("s", 20, Steady)});
  report.steps_planned = 1;
  EXPECT_FALSE(report.was_interrupted());
  report.steps_planned = 4;
  EXPECT_TRUE(report.was_interrupted());
  EXPECT_THAT(ReportText(report), HasSubstr("interrupted: 1 of 4 steps were begun"));
}

TEST(IntervalsTest, ThinningKeepsCallsAndTheWorst) {
  std::vector<LoadInterval> intervals(1000);
  for (size_t i = 0; i < intervals.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    intervals[i] = {.from_ns = at, .to_ns = at + 1, .ok = 2, .failed = 1, .max_ns = 5};
  }
  intervals[501].max_ns = intervals[502].p99_ns = 99;
  const std::vector<LoadInterval> thinned = Thinned(intervals, 300);
  ASSERT_EQ(thinned.size(), 250);
  EXPECT_EQ(thinned[0].to_ns, 4);
  EXPECT_EQ(thinned[249].to_ns, 1000);
  EXPECT_EQ(thinned[7].ok, 8);
  EXPECT_EQ(thinned[7].failed, 4);
  EXPECT_EQ(thinned[125].max_ns, 99);
  EXPECT_EQ(thinned[125].p99_ns, 99);
  EXPECT_EQ(Thinned(intervals, 1000).size(), 1000);
}

TEST(ReportTest, LongRunsHaveShortPages) {
  ReportStep step = SampleStep("s", 20, Steady);
  step.result.intervals.resize(100'000, step.result.intervals[0]);
  EXPECT_LE(ReportHtml(SampleReport({step})).size(), size_t{2} << 20);
}

TEST(StepResultTest, WindowsOfATrialAddUp) {
  StepResult sum = SampleStep("s", 1000, Steady).result;
  StepResult next = SampleStep("s", 3000, Steady).result;
  next.rate = 600;
  next.unsent = 2;
  next.max_in_flight = 9;
  sum.Append(next);
  EXPECT_EQ(sum.tally.ok(), 4000);
  EXPECT_DOUBLE_EQ(sum.window_s, 4);
  EXPECT_DOUBLE_EQ(sum.rate, 700);
  EXPECT_EQ(sum.unsent, 2);
  EXPECT_EQ(sum.max_in_flight, 9);
  ASSERT_EQ(sum.intervals.size(), 40);
  EXPECT_EQ(sum.intervals[10].from_ns, 1'000'000'000);
}

TEST(LiveLineTest, ShowsRateLatencyAndErrors) {
  LoadInterval interval = {.from_ns = 3'000'000'000,
                           .to_ns = 4'000'000'000,
                           .in_flight = 3,
                           .ok = 2000,
                           .p50_ns = 310'000};
  CallsByCode codes = {};
  codes[0] = 8000;
  codes[14] = 2;
  const std::string line = LiveLine(interval, codes);
  for (const char* part : {"4.0 s", "2000.0/s", "in flight 3", "p50 310 us", "UNAVAILABLE 2"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
  EXPECT_THAT(line, Not(HasSubstr("OK")));
}

TEST(AxisTest, TicksCoverTheValues) {
  const PlotAxis linear = LinearAxis("", 2218, "");
  EXPECT_EQ(linear.to, 2500);
  EXPECT_EQ(linear.ticks.size(), 6);
  const PlotAxis time = TimeAxis("", 310'000, 2'700'000'000);
  EXPECT_DOUBLE_EQ(time.from, 1e5);
  EXPECT_DOUBLE_EQ(time.to, 1e10);
  EXPECT_EQ(time.ticks.front().text, "100 us");
}

}  // namespace
}  // namespace gemmd
