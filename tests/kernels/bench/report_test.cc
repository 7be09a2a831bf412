// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/bench/gpu/gpu_measurement.h"

namespace gemmd::bench {
namespace {

using Json = nlohmann::ordered_json;
using testing::ContainsRegex;
using testing::HasSubstr;

GpuMeasurement DenseProduct(const std::string& tile, int64_t extent, double seconds) {
  GpuMeasurement m;
  m.instruction = "mma.m16n8k16.f32.bf16.bf16.f32";
  m.kernel = m.instruction + "_" + tile;
  m.types = "bf16 x bf16 into f32";
  m.has_default_recipe = true;
  m.shape = {extent, extent, extent};
  m.orders = "rcr";
  m.elements = extent * extent;
  m.compared = 4096;
  m.seconds = seconds;
  m.spread = 0.0123;
  m.samples = 100;
  m.operand_sets = 2;
  m.sm_clock_mhz = 1755;
  m.ceiling = 630e12;
  m.cublaslt = LibraryTime{.how = "best of 8", .seconds = 1.5 * seconds, .ratio = 1.5};
  return m;
}

GpuMeasurement SparseProduct() {
  GpuMeasurement m = DenseProduct("64x64x64", 1024, 1e-5);
  m.instruction = "mma.sp.m16n8k32.f32.bf16.bf16.f32";
  m.kernel = m.instruction + "_64x64x64";
  m.is_sparse = true;
  m.kernel_seconds = 0.5e-5;
  m.ceiling = std::nullopt;
  m.cublaslt = std::nullopt;
  m.cusparselt = LibraryTime{.how = "searched, D bf16", .seconds = 2e-5, .ratio = 2};
  m.alone = AloneTime{.seconds = 1e-5, .joules = 0.25, .sm_clock_mhz = 1500};
  m.host_seconds = 3.5e-6;
  m.library_alone = AloneTime{.seconds = 3e-5, .joules = std::nullopt, .sm_clock_mhz = 1600};
  return m;
}

std::vector<GpuMeasurement> Examples() {
  return {DenseProduct("128x128x64", 8192, 2e-3), DenseProduct("256x128x64", 8192, 1.8e-3),
          DenseProduct("128x128x64", 512, 1e-5), SparseProduct()};
}

Report Example() {
  Report report;
  report.facts = {{"gpu", "NVIDIA H200"}, {"cublaslt", "13.1.0"}, {"command", "gemmbench 'mma.*'"}};
  for (const GpuMeasurement& m : Examples()) report.measurements.push_back(EntryOf(m).fields);
  return report;
}

std::string LineOf(const GpuMeasurement& m) { return TableLine(GpuColumns(), EntryOf(m).cells); }

TEST(ReportTest, JsonHasEveryField) {
  const Json json = Json::parse(ToJson(Example()));
  EXPECT_EQ(json["gpu"], "NVIDIA H200");
  EXPECT_EQ(json["cublaslt"], "13.1.0");
  ASSERT_EQ(json["measurements"].size(), 4U);
  EXPECT_EQ(json["measurements"][3], Json::parse(R"({
      "kernel": "mma.sp.m16n8k32.f32.bf16.bf16.f32_64x64x64",
      "instruction": "mma.sp.m16n8k32.f32.bf16.bf16.f32",
      "types": "bf16 x bf16 into f32",
      "m": 1024, "n": 1024, "k": 1024, "batch": 1, "orders": "rcr", "leading_dimension_offset": 0, "output": "",
      "is_integer": false, "is_sparse": true, "has_default_recipe": true,
      "elements": 1048576, "compared": 4096, "mismatches": 0, "problem": "",
      "seconds": 1e-5, "spread": 0.0123, "kernel_seconds": 0.5e-5, "samples": 100,
      "operand_sets": 2, "sm_clock_mhz": 1755, "ceiling": null, "cublaslt": null,
      "cusparselt": {"how": "searched, D bf16", "seconds": 2e-5, "ratio": 2.0},
      "alone": {"seconds": 1e-5, "joules": 0.25, "sm_clock_mhz": 1500},
      "library_alone": {"seconds": 3e-5, "sm_clock_mhz": 1600}, "host_seconds": 3.5e-6})"));
  EXPECT_EQ(json["measurements"][0]["ceiling"], 630e12);
  EXPECT_EQ(json["measurements"][0]["kernel_seconds"], nullptr);
  EXPECT_EQ(json["measurements"][0]["cublaslt"]["how"], "best of 8");
}

std::vector<std::string> KeysOf(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

// Programs that read the committed reports can read new ones, which may have more fields.
TEST(ReportTest, MeasurementsHaveTheFieldsOfCommittedReports) {
  const Json ours = Json::parse(ToJson(Example()))["measurements"];
  for (const char* name : {"h200.json", "h200_alone.json", "h200_recipes.json"}) {
    std::ifstream file(std::string(GEMMD_REPORTS) + "/" + name);
    const Json committed = Json::parse(file)["measurements"];
    ASSERT_FALSE(committed.empty()) << name;
    EXPECT_THAT(KeysOf(committed[0]), testing::IsSubsetOf(KeysOf(ours[0]))) << name;
    for (const Json& measurement : committed) {
      if (measurement["cublaslt"].is_null()) continue;
      EXPECT_EQ(KeysOf(ours[0]["cublaslt"]), KeysOf(measurement["cublaslt"])) << name;
    }
  }
}

TEST(ReportTest, WithoutMeasurementsHasItsFacts) {
  Report report = Example();
  report.measurements.clear();
  EXPECT_EQ(Json::parse(ToJson(report))["gpu"], "NVIDIA H200");
  EXPECT_EQ(Json::parse(ToJson(report))["measurements"], Json::array());
  EXPECT_EQ(ToCsv(report), "");
}

TEST(ReportTest, CsvHasAsManyColumnsInEachLine) {
  std::istringstream csv(ToCsv(Example()));
  std::string line;
  int lines = 0;
  ptrdiff_t commas = 0;
  while (std::getline(csv, line)) {
    bool is_quoted = false;
    const auto here = std::count_if(line.begin(), line.end(), [&](char c) {
      if (c == '"') is_quoted = !is_quoted;
      return c == ',' && !is_quoted;
    });
    if (lines++ == 0) commas = here;
    EXPECT_EQ(here, commas) << line;
  }
  EXPECT_EQ(lines, 5);
  EXPECT_THAT(ToCsv(Example()), HasSubstr("kernel,instruction,types,m,n,k,batch,orders,"));
  EXPECT_THAT(ToCsv(Example()), HasSubstr("cublaslt_how,cublaslt_seconds,cublaslt_ratio,"));
  EXPECT_THAT(ToCsv(Example()), HasSubstr("\"searched, D bf16\",2e-05,2"));
}

TEST(ReportTest, LineSaysRatesAndShares) {
  const std::string line = LineOf(Examples()[1]);
  EXPECT_THAT(line, HasSubstr(" 610.8 "));  // 2 * 8192^3 / 1.8 ms
  EXPECT_THAT(line, HasSubstr(" 97.0% "));  // ... of 630.
  // 2 * 1024^3 / 10 us, 0.25 J over as many operations, and the library's / 30 us.
  EXPECT_THAT(LineOf(SparseProduct()), ContainsRegex(" 214\\.7 +116\\.415 +71\\.6 +- "));
  EXPECT_THAT(line, HasSubstr(" 407.2 "));  // The library's.
  EXPECT_THAT(line, HasSubstr(" 1.500 "));
  EXPECT_THAT(line, HasSubstr("4096 equal"));
}

TEST(ReportTest, LineSaysWhatIsWrong) {
  GpuMeasurement m = Examples()[0];
  m.mismatches = 3;
  m.problem = "d[1][2]: got 0x1, want 0x2";
  EXPECT_THAT(LineOf(m), HasSubstr("WRONG: 3 of 4096, d[1][2]: got 0x1, want 0x2"));
}

TEST(ReportTest, HeadingsStandAboveTheirColumns) {
  const std::vector<Column> columns = {{"name", -6}, {"T/s", 5}, {"check", -1}};
  EXPECT_EQ(TableHeader(columns), "name     T/s  check\n");
  EXPECT_EQ(TableLine(columns, {"a", "1.5", "ok"}), "a        1.5  ok\n");
}

}  // namespace
}  // namespace gemmd::bench
