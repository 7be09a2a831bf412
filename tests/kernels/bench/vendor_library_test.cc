// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt and cuSPARSELt when they are missing; and the types that they accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/bench/gpu/cublaslt.h"
#include "kernels/bench/gpu/cuda_types.h"
#include "kernels/bench/gpu/cusparselt.h"
#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::HasSubstr;

constexpr char kOther[] = "libm.so.6";  // A library, but not the wanted one.

TEST(VendorLibraryTest, SaysThatItIsNotThere) {
  EXPECT_THAT(LoadCublasLt("/nowhere/libcublasLt.so"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/libcublasLt.so")));
  EXPECT_THAT(LoadCusparseLt("/nowhere/libcusparseLt.so"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/libcusparseLt.so")));
}

TEST(VendorLibraryTest, SaysWhichFunctionAnotherLibraryLacks) {
  EXPECT_THAT(LoadCublasLt(kOther),
              StatusIs(absl::StatusCode::kNotFound, "libm.so.6: no function cublasLtGetVersion"));
  EXPECT_THAT(LoadCusparseLt(kOther),
              StatusIs(absl::StatusCode::kNotFound, "libm.so.6: no function cusparseLtInit"));
}

TEST(VendorLibraryTest, TakesTheTypesThatItHas) {
  EXPECT_EQ(CudaDataTypeOf(ElementType::kTf32), CUDA_R_32F);
  EXPECT_EQ(CudaDataTypeOf(ElementType::kE5m2), CUDA_R_8F_E5M2);
  EXPECT_EQ(CudaDataTypeOf(ElementType::kS4), std::nullopt);
  EXPECT_EQ(CudaDataTypeOf(ElementType::kB1), std::nullopt);
}

}  // namespace
}  // namespace gemmd::bench
