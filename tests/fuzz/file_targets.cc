// SPDX-License-Identifier: Apache-2.0
//
// Files that people give to the programs: arrays, mixes, times, reports.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/load/arrivals.h"
#include "client/load/load_plan.h"
#include "client/load/mix.h"
#include "client/load/report/compare.h"
#include "client/load/slo_search.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/matrix/npy_fuzz.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

// The client's libraries are built with abseil's own type.
absl::string_view Viewed(std::string_view text) { return {text.data(), text.size()}; }

void RunNpy(std::string_view input) {
  FuzzNpy(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::vector<std::string> NpySeeds() {
  const std::string data(48, '\1');
  std::vector<std::string> seeds;
  char hint = 0;
  for (const char* dict : {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }       \n",
                           "{'descr': '|b1', 'fortran_order': True, 'shape': (12, 4), }\n",
                           "{'descr': '|V1', 'fortran_order': True, 'shape': (2, 3, 8), }\n",
                           "{'descr': '>f8', 'fortran_order': False, 'shape': (6,), }\n",
                           "{'descr': '<V2', 'fortran_order': True, 'shape': (3, 4, 2), }\n",
                           "{'descr': '|i1', 'fortran_order': False, 'shape': (0, 3), }\n"}) {
    for (const int version : {1, 2, 3}) {
      hint = static_cast<char>((hint + 5) % v1::ElementType_ARRAYSIZE);
      seeds.push_back(hint + RawNpyHeader(version, dict) + data);
    }
  }
  return seeds;
}

void RunMix(std::string_view input) {
  auto mix = ParseMix(Viewed(input));
  if (!mix.ok()) return;
  Demand(!mix->empty(), "a mix is empty");
  for (const LoadProduct& product : *mix) {
    for (const int64_t size : {product.m, product.n, product.k, product.batch}) {
      Demand(size >= 1 && size <= INT32_MAX, "a mix has a size out of bounds");
    }
    Demand(product.weight > 0 && std::isfinite(product.weight), "a mix has a weight of nothing");
    Demand(ElementBits(product.type) > 0, "a mix has no type");
    Demand(!product.name.empty(), "a product of a mix has no name");
  }
  MakeNamesUnique(*mix);
  const MixPicker picker(*mix, 1);
  size_t last = 0;
  for (uint64_t call = 0; call < 64; ++call) {
    const size_t picked = picker.Pick(call);
    Demand(picked < mix->size(), "a product is picked that there is not");
    Demand(picker.Pick(call) == picked, "a call is for two products");
    last += picked;
  }
  // One whose weight is next to all is picked nearly always.
  double sum = 0;
  for (const LoadProduct& product : *mix) sum += product.weight / mix->front().weight;
  if (mix->size() > 1 && sum < 1.0001) Demand(last < 64, "weights are not kept");
}

std::vector<std::string> MixSeeds() {
  return {R"([{"m": 64, "n": 64, "k": 64}])",
          R"([{"m":1,"n":2,"k":3,"batch":4,"type":"bf16","weight":2.5,"sparse":true},
              {"m":1,"n":2,"k":3,"name":"x","kernel":"y","device":"cpu","operands":"resident",
               "accumulation_type":"f32","output_type":"f16"}])",
          R"([{"m":1,"n":1,"k":1,"weight":1e308},{"m":1,"n":1,"k":1,"weight":1e308}])",
          R"([{"m":"é😀","n":-1,"k":1e400}])"};
}

// Lines: a time of each kind, and the rest are the gaps of a replay.
void RunPlan(std::string_view input) {
  const auto gaps = ParseGaps(Viewed(input));
  if (gaps.ok()) {
    Demand(!gaps->empty(), "a replay has no gaps");
    int64_t most = 0;
    for (const int64_t gap : *gaps) {
      Demand(gap >= 0 && gap <= int64_t{86'400'000'000'000}, "a gap is out of bounds");
      most = std::max(most, gap);
    }
    Demand(most > 0, "a replay takes no time");
    Arrivals arrivals({.seed = 1, .replay_gaps_ns = *gaps});
    int64_t before = 0;
    for (int i = 0; i < 100; ++i) {
      const int64_t now = arrivals.NextNs();
      Demand(now >= before, "a call is due before the one before it");
      before = now;
    }
  }
  const auto line = [&input] {
    const size_t end = input.find('\n');
    const std::string text(input.substr(0, end));
    input.remove_prefix(end == input.npos ? input.size() : end + 1);
    return text;
  };
  LoadFlags flags;
  flags.slo = line();
  flags.duration = line();
  flags.warmup = line();
  flags.timeout = line();
  flags.interval = line();
  flags.type = line();
  flags.profile = line();
  if (const auto slo = ParseSlo(flags.slo); slo.ok()) {
    Demand(slo->fraction > 0 && slo->fraction < 1 && slo->limit_ns >= 0 && LeastCalls(*slo) > 0,
           "an objective is out of bounds");
  }
  const auto plan = PlanSession(flags);
  if (!plan.ok()) return;
  constexpr int64_t kWeekNs = int64_t{7} * 86'400'000'000'000;
  for (const NamedStep& step : plan->steps) {
    Demand(step.step.duration_ns > 0 && step.step.duration_ns <= kWeekNs &&
               step.step.warmup_ns >= 0 && step.step.warmup_ns <= kWeekNs &&
               step.step.interval_ns > 0,
           "a step takes a time out of bounds");
  }
}

std::vector<std::string> PlanSeeds() {
  return {"p99=2ms\n10s\n1s\n10s\n1s\nf32\nsmall", "1\n500us\n# gaps\n2ms\n", "\n1h\n0\n5\n0.5\n",
          "p99.9=1s\n\n\n\n"};
}

void RunReport(std::string_view input) {
  const auto report = ParseReport(Viewed(input));
  if (!report.ok()) return;
  Demand(!report->steps.empty(), "a report has no step");
  const auto text = CompareText(*report, *report);
  Demand(text.ok() && !text->empty(), "a report cannot be compared with itself");
}

std::vector<std::string> ReportSeeds() {
  const std::string histogram =
      R"({"buckets":[[1000,5],[2000,7]],"count":12,"mean_ns":1500,"least_ns":900,"most_ns":2000})";
  const std::string step =
      R"({"name":"1 in flight","rate_per_s":10.5,"unsent":0,"calls":12,"verification":{"wrong":0},)"
      R"("calls_by_status":{"OK":12},"latency":)" +
      histogram + R"(,"service":)" + histogram +
      R"(,"window_s":3,"intervals":[{"from_s":0,"to_s":1,"ok":4,"p50_ns":1000,"p99_ns":2000},)"
      R"({"from_s":1,"to_s":2,"ok":0,"p50_ns":0,"p99_ns":0}]})";
  return {R"({"steps":[)" + step + "," + step +
          R"(],"gemmload":"1","servers":[],"channels":1,"same_machine":true,"mix":[],)"
          R"("operands":"inline","arrivals":"closed","warmup_s":1,"interrupted":false})"};
}

}  // namespace

std::vector<Target> FileTargets() {
  return {{"npy", RunNpy, NpySeeds},
          {"mix", RunMix, MixSeeds},
          {"plan", RunPlan, PlanSeeds},
          {"report", RunReport, ReportSeeds}};
}

}  // namespace gemmd::fuzz
