// SPDX-License-Identifier: Apache-2.0
//
// What gemmload reads: mixes, durations and flags, reports.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/load/load_session.h"
#include "client/load/mix.h"
#include "client/load/open_loop.h"
#include "client/load/report/compare.h"
#include "gemmd/element_type.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

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
  // A product with nearly all of the weight is picked nearly always.
  double sum = 0;
  for (const LoadProduct& product : *mix) sum += product.weight / mix->front().weight;
  if (mix->size() > 1 && sum < 1.0001) Demand(last < 64, "weights are not kept");
}

std::vector<std::string> MixSeeds() {
  return {
      R"([{"m": 64, "n": 64, "k": 64}])",
      R"([{"m":1,"n":2,"k":3,"batch":4,"type":"bf16","weight":2.5,"sparse":true},
              {"m":1,"n":2,"k":3,"name":"x","kernel":"y","device":"cpu","operands":"resident",
               "accumulation_type":"f32","output_type":"f16"}])",
      R"([{"m":1,"n":1,"k":1,"weight":1e308},{"m":1,"n":1,"k":1,"weight":1e308}])",
      R"([{"m":"é😀","n":-1,"k":1e400}])",
      R"([{"m":1,"n":1,"k":1,"b_order":"row"},{"m":1,"n":1,"k":1,"b_order":"column","a":"x","b":"y"},
              {"m":1,"n":1,"k":1}])",
      R"([{"m":1,"n":1,"k":1,"b_order":1}])",
      R"([{"m":1,"n":1,"k":1,"name":1}])",
      R"([{"m":1,"n":1,"k":1,"operands":"x"}])",
      R"([{"m":1,"n":1,"k":1,"sparse":"x"}])",
      R"([{"m":1,"n":1,"k":1,"weight":0}])",
      R"([{"m":1,"n":1,"k":1,"type":"x"}])",
      R"([{"m":1,"n":1,"k":1,"other":1}])",
      R"([{"m":1,"n":1}])",
      R"([5])",
      "[]",
      "{}",
      "["};
}

// A file with this text, which lasts as long as the process.
std::string FileWith(std::string_view text) {
  const int file = memfd_create("fuzz", 0);
  Demand(file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
         "there is no memory for a file");
  return "/proc/self/fd/" + std::to_string(file);
}

// Files of each kind that flags may name; their contents have targets of their own.
const std::vector<std::string>& Files() {
  static const auto* const files = new std::vector<std::string>(
      {"", "/no/such/file", FileWith(R"([{"m":2,"n":2,"k":2},{"m":2,"n":2,"k":2,"type":"f16"}])"),
       FileWith("1ms\n2ms\n"), FileWith("["),
       FileWith(RawNpyHeader(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n") +
                std::string(16, '\0')),
       FileWith(RawNpyHeader(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2, 2), }\n") +
                std::string(48, '\0'))});
  return *files;
}

// The input's lines: a time of each kind and other text, then numbers, each of which sets one flag.
LoadFlags FlagsOf(std::string_view input) {
  const auto line = [&input] {
    const size_t end = input.find('\n');
    const std::string text(input.substr(0, end));
    input.remove_prefix(end == input.npos ? input.size() : end + 1);
    return text;
  };
  LoadFlags flags;
  for (std::string* const flag : {&flags.slo, &flags.duration, &flags.warmup, &flags.timeout,
                                  &flags.interval, &flags.type, &flags.profile}) {
    *flag = line();
  }
  for (int number = 0; number < 16 && !input.empty(); ++number) {
    const std::string text = line();
    const double value = std::strtod(text.c_str(), nullptr);
    const bool is_count = value >= 0 && value < 1e6;
    const auto count = static_cast<int>(is_count ? value : 0);
    const std::string& file = Files()[static_cast<size_t>(count) % Files().size()];
    // The same bounds that CheckLoadFlags sets before a plan is made.
    switch (number) {
      case 0: flags.mix_path = file; break;
      case 1: flags.replay_path = file; break;
      case 2: flags.a_path = file; break;
      case 3: flags.b_path = file; break;
      case 4:
        if (count > 0) flags.shape = {count, count, 2};
        break;
      case 5: flags.count = count; break;
      case 6:
        if (value > 0 && std::isfinite(value)) flags.ramp_to = value;
        break;
      case 7: flags.output_type = text; break;
      case 8:
        if (count > 0) flags.batch = count;
        break;
      case 9: flags.b_order = count % 2 == 0 ? "row" : "column"; break;
      case 10: flags.arrivals = count % 2 == 0 ? "constant" : "poisson"; break;
      case 11: flags.kernel = text; break;
      default:
        if (value > 0 && std::isfinite(value)) flags.rates.push_back(value);
        if (count > 0) flags.concurrency.push_back(count);
    }
  }
  return flags;
}

void CheckPlan(const LoadFlags& flags) {
  const auto plan = PlanSession(flags);
  if (!plan.ok()) {
    Demand(plan.status().message().size() < 20000, "a refusal is long");
    return;
  }
  constexpr int64_t kWeekNs = int64_t{7} * 86'400'000'000'000;
  Demand(!plan->mix.empty() && !plan->steps.empty(), "nothing is planned");
  for (const LoadProduct& product : plan->mix) {
    Demand(product.m > 0 && product.n > 0 && product.k > 0 && product.batch > 0 &&
               !product.name.empty(),
           "a product has no size or name");
  }
  for (const NamedStep& step : plan->steps) {
    Demand(step.step.duration_ns > 0 && step.step.duration_ns <= kWeekNs &&
               step.step.warmup_ns >= 0 && step.step.warmup_ns <= kWeekNs &&
               step.step.interval_ns > 0,
           "a step takes a time out of bounds");
  }
}

// Gaps of a replay, and flags.
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
  if (const auto slo = ParseSlo(Viewed(input.substr(0, input.find('\n')))); slo.ok()) {
    Demand(slo->fraction > 0 && slo->fraction < 1 && slo->limit_ns >= 0 && MinCalls(*slo) > 0,
           "an objective is out of bounds");
  }
  CheckPlan(FlagsOf(input));
}

std::vector<std::string> PlanSeeds() {
  return {"p99=2ms\n10s\n1s\n10s\n1s\nf32\nsmall", "1\n500us\n# gaps\n2ms\n", "\n1h\n0\n5\n0.5\n",
          "p99.9=1s\n\n\n\n",
          // One seed for each place where flags are used.
          "\n5s\n1s\n1s\n1s\n\n\n2", "\n5s\n1s\n1s\n1s\n\n\n4", "\n5s\n1s\n1s\n1s\n\n\n1",
          "\n5s\n1s\n1s\n1s\n\n\n0\n3", "\n5s\n1s\n1s\n1s\n\n\n0\n4", "\n5s\n1s\n1s\n1s\n\n\n0\n1",
          "\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n5\n5", "\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n6\n0\n4",
          "\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n0\n6\n3\n0\n0\nf16\n3\n1\n1\ncpu",
          "\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n1\n0\n4", "\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n0\n1\n4",
          "\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n5\n2\n0",
          "\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n0\n0\n4\n0\n200\nf32\n1\n1\n1\nk\n100\n300",
          "p99=2ms\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n0\n0\n4\n0\n0\nf32\n1\n1\n1\nk\n100",
          "p99=2ms\n5s\n1s\n1s\n1s\nf32\n\n0\n0\n0\n0\n4\n7\n0\nf32\n1\n1\n1\nk\n100",
          "\n\n1s\n1s\n1s\nf32\n\n0\n0\n0\n0\n4\n7",
          "\n\n1s\n1s\n1s\nf32\n\n0\n0\n0\n0\n4\n7\n9\nf32\n1\n1\n1\nk\n100", "\n9w\n1s\n1s\n1s",
          "\n9s\nx\n1s\n1s", "\n9s\n1s\nx\n1s", "\n9s\n1s\n1s\nx",
          "\n9s\n1s\n1s\n1s\nf32\nno such profile"};
}

// A report with steps of this name and of another one.
std::string SampleReport(const std::string& name) {
  const std::string histogram =
      R"({"buckets":[[1000,5],[2000,7]],"count":12,"mean_ns":1500,"least_ns":900,"most_ns":2000})";
  const std::string many =
      R"({"buckets":[[1000,50000],[2000,7000]],"count":57000,"mean_ns":1500,"least_ns":900,)"
      R"("most_ns":2000})";
  const auto step = [](const std::string& of, const std::string& latency, int wrong) {
    std::string intervals;
    for (int i = 0; i < 4; ++i) {
      intervals += R"({"from_s":)" + std::to_string(i) + R"(,"to_s":)" + std::to_string(i + 1) +
                   R"(,"ok":)" + std::to_string(4 * i) + R"(,"p50_ns":1000,"p99_ns":2000},)";
    }
    intervals.pop_back();
    return R"({"name":")" + of + R"(","rate_per_s":10.5,"unsent":1,"calls":12,"verification":)" +
           R"({"wrong":)" + std::to_string(wrong) + R"(},"calls_by_status":{"OK":12},"latency":)" +
           latency + R"(,"service":)" + latency + R"(,"window_s":3,"intervals":[)" + intervals +
           "]}";
  };
  return R"({"steps":[)" + step(name, histogram, 0) + "," + step(name + " again", many, 2) +
         R"(],"gemmload":"1","servers":[],"channels":1,"same_machine":true,"mix":[],)"
         R"("operands":"inline","arrivals":"closed","warmup_s":1,"interrupted":false})";
}

void RunReport(std::string_view input) {
  const auto report = ParseReport(Viewed(input));
  if (!report.ok()) return;
  Demand(!report->steps.empty(), "a report has no step");
  const auto text = CompareText(*report, *report);
  Demand(text.ok() && !text->empty(), "a report cannot be compared with itself");
  // Compares it with another report, in either order.
  static const auto* const other =
      new ComparedReport(ParseReport(SampleReport("2 in flight")).value());
  const auto forth = CompareText(*report, *other);
  const auto back = CompareText(*other, *report);
  Demand(forth.ok() == back.ok(), "reports have steps in common one way alone");
}

std::vector<std::string> ReportSeeds() {
  // A report of another load, and one without failed calls to compare with one that has some.
  std::string settings = SampleReport("2 in flight");
  settings.replace(settings.find("\"inline\""), 8, "\"shared\"");
  std::string unsent = SampleReport("2 in flight");
  unsent.replace(unsent.find("\"unsent\":1"), 10, "\"unsent\":0");
  std::string odd = SampleReport("2 in flight");
  odd.replace(odd.find("\"mean_ns\":1500"), 14, "\"mean_ns\":1e999");
  std::string stepless = SampleReport("x");
  stepless.replace(stepless.find("\"steps\":["), 9, "\"steps\":[],\"other\":[");
  return {SampleReport("1 in flight"),
          SampleReport("2 in flight"),
          settings,
          unsent,
          odd,
          stepless,
          R"({"steps":5})",
          "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"};
}

}  // namespace

std::vector<Target> LoadTargets() {
  return {
      {"mix", RunMix, MixSeeds}, {"plan", RunPlan, PlanSeeds}, {"report", RunReport, ReportSeeds}};
}

}  // namespace gemmd::fuzz
