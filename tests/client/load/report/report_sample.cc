// SPDX-License-Identifier: Apache-2.0
#include "tests/client/load/report/report_sample.h"

#include <utility>

#include "tests/testing/units.h"

namespace gemmd {

ReportStep SampleStep(const std::string& name, int64_t calls,
                      const std::function<int64_t(int64_t call)>& service_ns) {
  ReportStep step;
  step.name = name;
  step.is_open = true;
  step.target = 1000;
  StepResult& result = step.result;
  Histogram of_interval;
  for (int64_t i = 0; i < calls; ++i) {
    CallSample sample;
    sample.product = static_cast<size_t>(i % 2);
    sample.intended_ns = sample.admitted_ns = i * kMs;
    sample.sent_ns = sample.intended_ns + 10'000;
    sample.ended_ns = sample.sent_ns + service_ns(i);
    sample.timing.set_queue_ns(1000);
    sample.timing.set_compute_ns(20'000);
    sample.timing.set_total_ns(25'000);
    sample.operations = 1000;
    sample.bytes = 100;
    sample.kernel = "a_kernel";
    sample.device = "cpu";
    result.tally.Add(sample);
    if (i % 100 == 0) {
      of_interval = {};
      result.intervals.push_back({.from_ns = i * kMs, .to_ns = (i + 100) * kMs});
    }
    of_interval.Record(sample.ended_ns - sample.intended_ns);
    LoadInterval& interval = result.intervals.back();
    ++interval.ok;
    interval.p50_ns = of_interval.ValueAt(0.5);
    interval.p99_ns = of_interval.ValueAt(0.99);
    interval.max_ns = of_interval.max_ns();
  }
  result.window_s = static_cast<double>(calls) * 1e-3;
  result.rate = result.offered = 1000;
  result.usable_cores = 2;
  result.client_cores = 0.5;
  return step;
}

LoadReport SampleReport(std::vector<ReportStep> steps) {
  LoadReport report;
  report.version = "1.2.3";
  report.started = "2026-01-02T03:04:05+00:00";
  report.command = "gemmload --mix <a&b>.json";
  report.servers = {{"127.0.0.1:1", "1.2.3"}};
  report.mix = "<a&b>.json";
  report.products = {"64x64x64 f32", "<b>&\"'"};
  report.steps = std::move(steps);
  return report;
}

}  // namespace gemmd
