// SPDX-License-Identifier: Apache-2.0
//
// Predicted times compared with measured times of products, on the processor and on simulators.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"
#include "kernels/kernel.h"
#include "kernels/select.h"
#include "tests/kernels/prediction_case.h"
#include "tests/testing/timed.h"

namespace gemmd {
namespace {

constexpr double kMaxRatio = 2;
// Neither clocks nor caches are that steady.
constexpr double kMinSeconds = 2e-6;

double Ratio(double predicted, double taken) {
  return std::max(predicted, taken) / std::max(std::min(predicted, taken), 1e-12);
}

std::string NameOf(const PredictionCase& c) {
  std::string text = std::string(c.name) + " " + std::to_string(c.m) + "x" + std::to_string(c.n) +
                     "x" + std::to_string(c.k);
  if (c.batch > 1) text += " batch " + std::to_string(c.batch);
  return text;
}

// Whether the prediction of a kernel holds for a case. Other work on the machine makes a product
// slower, not faster, so the fastest launch counts; if that is too slow, there are more launches.
bool Holds(const Kernel& kernel, const PredictionCase& c, const DeviceProfile& profile) {
  const Problem problem = ProblemOf(c, kernel);
  if (!kernel.supports(problem).ok()) return true;
  const double predicted = static_cast<double>(Predict(kernel, problem, profile).kernel_ns) / 1e9;
  const absl::StatusOr<double> taken =
      FastestLaunch(kernel, problem, profile.target, 1.5 * predicted, 0.02);
  if (!taken.ok()) {
    ADD_FAILURE() << kernel.name << " " << NameOf(c) << ": " << taken.status();
    return false;
  }
  const double ratio = Ratio(std::max(predicted, kMinSeconds), std::max(*taken, kMinSeconds));
  const bool holds = ratio <= kMaxRatio;
  std::printf("%-44.*s %-40s predicted %10.1f us, taken %10.1f us, %7.2f%s\n",
              static_cast<int>(kernel.name.size()), kernel.name.data(), NameOf(c).c_str(),
              predicted * 1e6, *taken * 1e6, predicted / *taken, holds ? "" : "  <--");
  return holds;
}

const Kernel* Find(DeviceKind kind, std::string_view name) {
  for (const Kernel& kernel : Catalog(kind)) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

struct Row {
  const Kernel* kernel;
  PredictionCase product;
};

std::vector<Row> RowsOf(const Target& target, const std::vector<std::string>& names) {
  std::vector<Row> rows;
  for (const std::string& name : names) {
    const Kernel* const kernel = Find(target.kind, name);
    EXPECT_NE(kernel, nullptr) << name;
    if (kernel == nullptr || !kernel->available(target).ok()) continue;
    for (const PredictionCase& c : PredictionCases(target.kind)) rows.push_back({kernel, c});
  }
  return rows;
}

// With the costs measured once, as the daemon does, nearly all hold. Other work on the machine may
// use caches and memory while a cost is measured or a product runs, so a few may be tried again,
// twice.
void ExpectPredictionsHold(const Target& target, const std::vector<std::string>& names) {
  constexpr int kTries = 3;
  constexpr size_t kFew = 10;  // One in this many.
  SetThreads(1);
  std::vector<Row> rows = RowsOf(target, names);
  const size_t few = rows.size() / kFew;
  for (int i = 0; i < kTries && !rows.empty(); ++i) {
    const double start = ThreadSeconds();
    const DeviceProfile profile = MeasureRates(target);
    std::printf("costs measured in %.0f ms\n", 1e3 * (ThreadSeconds() - start));
    const auto holds = [&](const Row& row) { return Holds(*row.kernel, row.product, profile); };
    rows.erase(std::remove_if(rows.begin(), rows.end(), holds), rows.end());
    if (i == 0) {
      HoldsTimed("predictions wrong at the first try", static_cast<double>(few),
                 static_cast<double>(rows.size()), "products");
    }
  }
  HoldsTimed("predictions wrong at every try", 0, static_cast<double>(rows.size()), "products");
  for (const Row& row : rows) {
    ADD_FAILURE() << row.kernel->name << ", " << NameOf(row.product) << ": in none of " << kTries
                  << " tries within " << kMaxRatio << " times of what was predicted";
  }
}

TEST(PredictionsTimed, HoldOnTheProcessor) {
  ExpectPredictionsHold(
      HostTarget(),
      {"onednn.f32.f32.f32", "openblas.f32.f32.f32", "openblas.f64.f64.f64", "onednn.f32.bf16.bf16",
       "onednn.s32.s8.s8", "onednn.s32.u8.u8", "openblas.f64.f32.f32.via_f64",
       "onednn.f32.f16.f16.via_f32", "onednn.f32.e4m3.e4m3.via_bf16",
       "onednn.f32.e2m1.e2m1.via_f32", "onednn.s32.s4.s4.via_s8", "onednn.s32.b1.b1.via_s8",
       "openblas.s32.s8.s8.via_f64", "gemmd.f32.e4m3.e4m3.blocks", "gemmd.f32.e2m1.e2m1.blocks"});
}

TEST(PredictionsTimed, HoldOnASimulatedHopper) {
  ExpectPredictionsHold(
      {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90},
      {"mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f16.f16.f16.f16",
       "mma.m16n8k8.f32.tf32.tf32.f32", "mma.m16n8k32.f32.e4m3.e4m3.f32",
       "wgmma.m64n256k16.f32.bf16.bf16", "wgmma.m64n8k16.f32.f16.f16",
       "mma.sp.m16n8k32.f32.f16.f16.f32", "mma.m16n8k32.s32.s8.s8.s32", "mma.m16n8k16.f64",
       "mma.m8n8k4.f64", "mma.m16n8k256.s32.b1.b1.s32.and.popc",
       "wmma.m16n16k16.row.col.f32.f16.f16.f32", "wgmma.m64n128k16.f32.f16.f16_from_f32_p64"});
}

TEST(PredictionsTimed, HoldOnASimulatedVolta) {
  ExpectPredictionsHold(
      {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm70},
      {"mma.m8n8k4.row.col.f32.f16.f16.f32", "wmma.m16n16k16.row.col.f32.f16.f16.f32"});
}

// Block factors, which only the plain code applies, and operands narrower than a byte.
TEST(PredictionsTimed, HoldOnASimulatedBlackwell) {
  ExpectPredictionsHold(
      {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm120},
      {"mma.m16n8k32.kind::f8f6f4.f32.e3m2.e2m3.f32",
       "mma.sp.m16n8k64.kind::f8f6f4.f32.e4m3.e5m2.f32",
       "mma.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0",
       "mma.m16n8k64.s32.s4.s4.s32"});
}

}  // namespace
}  // namespace gemmd
