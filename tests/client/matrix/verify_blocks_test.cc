// SPDX-License-Identifier: Apache-2.0
//
// Block factors in requests, and answers to such requests: the answer of a correct server passes,
// and each wrong element or factor is detected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "client/matrix/verify.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/matrix/verify_case.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr int64_t kM = 7;
constexpr int64_t kN = 5;
constexpr int64_t kK = 75;

// Different floats near one.
std::string FloatFactors(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const float value = 0.25F + static_cast<float>(i % 11) / 8;
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

struct Scaled {
  std::string a_factors = FloatFactors(kM * 5);
  std::string b_factors = "\x7e\x7f\x80\x81\x7f\x7e\x7f\x80\x81";

  v1::MultiplyRequest Request() const {
    return RequestFor({.type = v1::ELEMENT_TYPE_E4M3,
                       .m = kM,
                       .n = kN,
                       .k = kK,
                       .change = [this](MatrixView& a, MatrixView& b, ProductOptions&) {
                         a.blocks = {.type = v1::FACTOR_TYPE_F32,
                                     .rows_per_block = 1,
                                     .k_per_block = 16,
                                     .factors = std::as_bytes(std::span(a_factors))};
                         b.blocks = {.type = v1::FACTOR_TYPE_UE8M0,
                                     .rows_per_block = 2,
                                     .k_per_block = 32,
                                     .factors = std::as_bytes(std::span(b_factors))};
                       }});
  }

  double FactorOfA(int64_t row, int64_t k) const {
    float value = 0;
    std::memcpy(&value, a_factors.data() + (row * 5 + k / 16) * 4, sizeof(value));
    return value;
  }
  double FactorOfB(int64_t column, int64_t k) const {
    return std::ldexp(
        1.0, static_cast<uint8_t>(b_factors[static_cast<size_t>(column / 2 * 3 + k / 32)]) - 127);
  }

  // A server in float: sums of 16, each times its factors.
  v1::Matrix Answer(const v1::MultiplyRequest& request) const {
    const MatrixReader a(request.a(), request.a().type(), kM, kK);
    const MatrixReader b(request.b(), request.b().type(), kK, kN);
    v1::Matrix d = Compute<float>(request, v1::ELEMENT_TYPE_F32);
    for (int64_t i = 0; i < kM; ++i) {
      for (int64_t j = 0; j < kN; ++j) {
        float total = 0;
        for (int64_t first = 0; first < kK; first += 16) {
          float sum = 0;
          for (int64_t k = first; k < std::min(kK, first + 16); ++k) {
            sum += static_cast<float>(a.At(0, i, k) * b.At(0, k, j));
          }
          total += static_cast<float>(sum * (FactorOfA(i, first) * FactorOfB(j, first)));
        }
        SetElement(d, i, j, total);
      }
    }
    return d;
  }
};

TEST(VerifyBlocksTest, AcceptsWhatIsRightAndNothingElse) {
  const Scaled scaled;
  const v1::MultiplyRequest request = scaled.Request();
  const v1::Matrix right = scaled.Answer(request);
  const auto result = Verify(request, right);
  ASSERT_THAT(result, IsOk());
  EXPECT_TRUE(result->passed());
  EXPECT_EQ(result->checked, kM * kN);
  for (const double factor : {1.001, 0.999, -1.0, 0.0, std::nan("")}) {
    v1::Matrix d = right;
    SetElement(d, 6, 4, GetElement(d, 6, 4) * factor);
    EXPECT_FALSE(Verify(request, d)->passed()) << factor;
  }
  // Without factors it is another product.
  EXPECT_FALSE(Verify(request, Compute<float>(request, v1::ELEMENT_TYPE_F32))->passed());
  v1::MultiplyRequest other = request;
  (*other.mutable_b()->mutable_scale()->mutable_blocks()->mutable_factors())[8] = '\x7f';
  EXPECT_FALSE(Verify(other, right)->passed());
}

TEST(VerifyBlocksTest, MatricesOfABatchHaveTheirOwn) {
  v1::BlockScale blocks;
  blocks.set_type(v1::FACTOR_TYPE_UE4M3);
  blocks.set_rows_per_block(2);
  blocks.set_k_per_block(16);
  blocks.set_per_matrix(true);
  blocks.set_factors(std::string("\x38\x40\x30\x3c\x7f\xb8\x28\x20", 8));
  const BlockFactors factors(blocks, 3, 20);
  EXPECT_EQ(factors.At(0, 0, 0), 1);
  EXPECT_EQ(factors.At(0, 1, 16), 2);
  EXPECT_EQ(factors.At(0, 2, 15), 0.5);
  EXPECT_EQ(factors.At(0, 2, 19), 1.5);
  EXPECT_TRUE(std::isnan(factors.At(1, 0, 0)));
  EXPECT_EQ(factors.At(1, 1, 19), 1);            // The highest bit is ignored.
  EXPECT_TRUE(std::isnan(factors.At(2, 0, 0)));  // NaN.
}

TEST(VerifyBlocksTest, CodesOfPowers) {
  EXPECT_EQ(DecodeFactorCode(FactorType::kUe8m0, 0), 0x1p-127);
  EXPECT_EQ(DecodeFactorCode(FactorType::kUe8m0, 127), 1);
  EXPECT_EQ(DecodeFactorCode(FactorType::kUe8m0, 254), 0x1p127);
  EXPECT_TRUE(std::isnan(DecodeFactorCode(FactorType::kUe8m0, 255)));
}

TEST(VerifyBlocksTest, TensorsAreSentWithThem) {
  const std::string factors = FloatFactors(2);
  TensorView weights;
  weights.tensor = NamedTensor("w");
  weights.type = v1::ELEMENT_TYPE_E4M3;
  weights.rows = 4;
  weights.columns = 32;
  weights.transpose = true;
  weights.blocks = {.type = v1::FACTOR_TYPE_F32,
                    .rows_per_block = 4,
                    .k_per_block = 16,
                    .factors = std::as_bytes(std::span(factors))};
  const std::string a(64, '\x38');
  const MatrixView x = PackedView(v1::ELEMENT_TYPE_E4M3, std::as_bytes(std::span(a)), 2, 32);
  const auto request = BuildRequest(Operand(x), Operand(weights));
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->b().has_tensor());
  EXPECT_TRUE(request->b().transpose());
  EXPECT_EQ(request->b().scale().blocks().factors(), factors);
  EXPECT_EQ(request->b().scale().blocks().k_per_block(), 16);
  EXPECT_FALSE(request->a().has_scale());
}

}  // namespace
}  // namespace gemmd
