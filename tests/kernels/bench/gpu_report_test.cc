// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/gpu_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::HasSubstr;

GpuMeasurement Dense(const std::string& tile, int64_t extent, double seconds) {
  GpuMeasurement m;
  m.instruction = "mma.m16n8k16.f32.bf16.bf16.f32";
  m.kernel = m.instruction + "_" + tile;
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

GpuMeasurement Sparse() {
  GpuMeasurement m = Dense("64x64x64", 1024, 1e-5);
  m.instruction = "mma.sp.m16n8k32.f32.bf16.bf16.f32";
  m.kernel = m.instruction + "_64x64x64";
  m.is_sparse = true;
  m.kernel_seconds = 0.5e-5;
  m.ceiling = std::nullopt;
  m.cublaslt = std::nullopt;
  m.cusparselt = LibraryTime{.how = "searched, D bf16", .seconds = 2e-5, .ratio = 2};
  return m;
}

GpuReport Example() {
  GpuReport report;
  report.gpu = "NVIDIA H200";
  report.chip = "sm_90";
  report.multiprocessors = 132;
  report.max_sm_clock_mhz = 1980;
  report.driver = "580.159.04";
  report.cuda = "13.0";
  report.cublaslt = "13.1.0";
  report.commit = "0123abc";
  report.date = "2026-11-21";
  report.command = "gemmbench --device cuda:0 --filter 'mma.*'";
  report.measurements = {Dense("128x128x64", 8192, 2e-3), Dense("256x128x64", 8192, 1.8e-3),
                         Dense("128x128x64", 512, 1e-5), Sparse()};
  return report;
}

TEST(GpuReportTest, IsReadAsItWasWritten) {
  EXPECT_EQ(*ReportFromJson(ToJson(Example())), Example());
  EXPECT_EQ(*ReportFromJson(ToJson(GpuReport())), GpuReport());
}

TEST(GpuReportTest, RefusesWhatIsNoReport) {
  for (const char* text : {"", "{", "[]", "{}", "{\"gpu\": 3}"}) {
    EXPECT_THAT(ReportFromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("report: got ")))
        << text;
  }
  std::string text = ToJson(Example());
  text.replace(text.find("\"compared\""), 10, "\"composed\"");
  EXPECT_THAT(ReportFromJson(text),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("compared")));
}

TEST(GpuReportTest, CsvHasAsManyColumnsInEachLine) {
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
  EXPECT_THAT(ToCsv(Example()), HasSubstr("kernel,instruction,m,n,k,orders,"));
  EXPECT_THAT(ToCsv(Example()), HasSubstr("cublaslt_how,cublaslt_seconds,cublaslt_ratio,"));
  EXPECT_THAT(ToCsv(Example()), HasSubstr("\"searched, D bf16\",2e-05,2"));
}

TEST(GpuReportTest, LineSaysRatesAndShares) {
  const std::string line = GpuTableLine(Example().measurements[1]);
  EXPECT_THAT(line, HasSubstr(" 610.8 "));  // 2 * 8192^3 / 1.8 ms
  EXPECT_THAT(line, HasSubstr(" 97.0% "));  // ... of 630.
  EXPECT_THAT(line, HasSubstr(" 407.2 "));  // The library's.
  EXPECT_THAT(line, HasSubstr(" 1.500 "));
  EXPECT_THAT(line, HasSubstr("4096 equal"));
}

TEST(GpuReportTest, LineSaysWhatIsWrong) {
  GpuMeasurement m = Example().measurements[0];
  m.mismatches = 3;
  m.problem = "d[1][2]: got 0x1, want 0x2";
  EXPECT_THAT(GpuTableLine(m), HasSubstr("WRONG: 3 of 4096, d[1][2]: got 0x1, want 0x2"));
}

}  // namespace
}  // namespace gemmd::bench
