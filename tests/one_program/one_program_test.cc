// SPDX-License-Identifier: Apache-2.0
//
// The daemon, gemmctl and gemmload linked into one program with all of their object files: the
// server runs here, and both tools call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "client/gemmctl/top.h"
#include "client/load/load_command_line.h"
#include "client/load/recorder.h"
#include "client/matrix/verify.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "kernels/verify/element_bound.h"
#include "server/crossing/protocol.h"
#include "server/product/product.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

// Each of these two pairs once shared one name.
static_assert(kCallStages == kStages + 2);
static_assert(sizeof(ActivityRates) != sizeof(GpuRates));

TEST(OneProgramTest, GemmctlMultipliesOnTheServer) {
  RunningServer server(TestDevice::kCpu);
  const Outcome outcome = RunGemmctl(
      {"multiply", "--random=33,34,35", "--type=f32", "--verify", "--json"}, server.tcp_address());
  EXPECT_EQ(outcome.code, ExitCode::kOk) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("\"copy_in"));
}

TEST(OneProgramTest, GemmloadLoadsTheServer) {
  RunningServer server(TestDevice::kCpu);
  const StopRequests stop = 0;
  std::FILE* const out = std::tmpfile();
  std::FILE* const err = std::tmpfile();
  EXPECT_EQ(RunGemmload({"--shape=8,8,8", "--type=f32", "--count=20", "--warmup=0s", "--quiet"},
                        server.tcp_address(), {stdin, out, err, "gemmload"}, false, stop),
            ExitCode::kOk);
  EXPECT_GT(std::ftell(out), 0);
  std::fclose(out);
  std::fclose(err);
}

// The client includes no kernels and the server no client, so both define the limit of an element.
TEST(OneProgramTest, BothBoundAnElementAlike) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  constexpr float kSpecials[] = {0, 1e-40F, 3e38F, std::numeric_limits<float>::infinity()};
  for (int i = 0; i < 2000; ++i) {
    const int64_t k = random.Between(1, 40);
    const auto number = [&] {
      return random.Between(0, 60) == 0 ? kSpecials[random.Between(0, 3)]
                                        : static_cast<float>(random.Between(-1000, 1000)) / 64;
    };
    std::vector<float> a(static_cast<size_t>(k));
    std::vector<float> b(a.size());
    for (float& x : a) x = number();
    for (float& x : b) x = number();
    const std::vector<float> c = {number()};
    const std::vector<float> bias = {number()};
    ProductOptions options;
    options.alpha = static_cast<double>(random.Between(1, 1000)) / 7;
    options.beta = random.Flip() ? static_cast<double>(random.Between(-9, -1)) / 7 : 0;
    if (options.beta != 0) options.c = View(c, 1, 1);
    options.bias = BiasView{.type = v1::ELEMENT_TYPE_F32,
                            .axis = v1::BIAS_AXIS_ROWS,
                            .data = std::as_bytes(std::span(bias))};
    options.activation = static_cast<v1::Activation>(random.Between(0, 4));
    const auto request = BuildRequest(View(a, 1, k), View(b, k, 1), options);
    ASSERT_TRUE(request.ok()) << request.status();
    const BoundedElement want = Reference(*request).Rows(0, {0}).front();

    Problem problem;
    problem.m = problem.n = 1;
    problem.k = k;
    problem.alpha = options.alpha;
    problem.beta = options.beta;
    problem.bias_axis = BiasAxis::kRows;
    problem.activation = static_cast<Activation>(options.activation);
    DotProduct dot;
    for (size_t l = 0; l < a.size(); ++l) AddProduct(a[l], b[l], dot);
    const Recipe recipe = {ElementType::kF32, ElementType::kF32, ElementType::kF32, false, true};
    const BoundedElement got =
        verify::BoundOf(recipe, problem, dot, {.c = problem.has_c() ? c[0] : 0.0, .bias = bias[0]});
    EXPECT_EQ(got.is_decidable, want.is_decidable);
    if (!want.is_decidable) continue;
    if (!std::isfinite(want.value)) {
      EXPECT_TRUE(got.value == want.value || (std::isnan(got.value) && std::isnan(want.value)))
          << got.value << " and " << want.value;
      continue;
    }
    EXPECT_EQ(got.error, want.error);
    // Two functions evaluate smooth activations, and they differ in the last bits.
    const bool is_exact = options.activation <= v1::ACTIVATION_RELU;
    const double most = is_exact ? 0 : std::abs(want.value) * 0x1p-48 + want.error * 0x1p-20;
    EXPECT_TRUE(std::abs(got.value - want.value) <= most)
        << got.value << " and " << want.value << ", activation " << options.activation;
  }
}

}  // namespace
}  // namespace gemmd
