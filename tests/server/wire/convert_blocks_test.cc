// SPDX-License-Identifier: Apache-2.0
//
// Block factors on the wire: the meaning of a request with them, every refusal of a bad one, and
// the request that is made again of an incident.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "server/wire/admin_service.h"
#include "server/wire/convert.h"
#include "tests/server/wire/parsed_product.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using Request = v1::MultiplyRequest;
using testing::HasSubstr;

const HeldFields kNoneHeld;

// 3 x 5 x 70 of e4m3; A has factors of 1 x 32 blocks; B, given as n x k, has factors of 2 x 16
// blocks.
Request ScaledRequest() {
  Request request;
  request.set_m(3);
  request.set_n(5);
  request.set_k(70);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_E4M3);
  request.mutable_a()->set_data(std::string(3 * 70, '\x38'));
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_E4M3);
  request.mutable_b()->set_transpose(true);
  request.mutable_b()->set_data(std::string(5 * 70, '\x38'));
  v1::BlockScale& a = *request.mutable_a()->mutable_scale()->mutable_blocks();
  a.set_type(v1::FACTOR_TYPE_UE8M0);
  a.set_rows_per_block(1);
  a.set_k_per_block(32);
  a.set_factors(std::string(3 * 3, '\x7f'));
  v1::BlockScale& b = *request.mutable_b()->mutable_scale()->mutable_blocks();
  b.set_type(v1::FACTOR_TYPE_F32);
  b.set_rows_per_block(2);
  b.set_k_per_block(16);
  b.set_factors(std::string(3 * 5 * 4, '\x01'));
  return request;
}

v1::BlockScale& BlocksOfA(Request& request) {
  return *request.mutable_a()->mutable_scale()->mutable_blocks();
}

int64_t BytesIn(const Source& source) {
  int64_t bytes = 0;
  for (const Piece piece : source.pieces) bytes += static_cast<int64_t>(piece.size());
  return bytes;
}

TEST(ConvertBlocksTest, AreAPartOfTheProblem) {
  const Request request = ScaledRequest();
  const absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, &kNoneHeld);
  ASSERT_THAT(parsed, IsOk());
  const Problem& problem = (*parsed)->job.problem;
  EXPECT_EQ(problem.a_scale, ScaleKind::kBlocks);
  EXPECT_EQ(problem.b_scale, ScaleKind::kBlocks);
  EXPECT_EQ(problem.a_blocks, (BlockScale{.type = FactorType::kUe8m0, .lines = 1, .depth = 32}));
  EXPECT_EQ(problem.b_blocks, (BlockScale{.type = FactorType::kF32, .lines = 2, .depth = 16}));
  EXPECT_FALSE(problem.has_scales());
  EXPECT_EQ(BytesIn((*parsed)->job.a_scale), 9);
  EXPECT_EQ((*parsed)->job.b_scale.bytes, 60);
  // Explained, without bytes.
  Request described = request;
  BlocksOfA(described).clear_factors();
  EXPECT_THAT(ParsedProduct(described, nullptr), IsOk());
}

TEST(ConvertBlocksTest, MatricesMayHaveTheirOwn) {
  Request request = ScaledRequest();
  request.set_batch(2);
  request.mutable_b()->set_batch_stride(0);
  request.mutable_a()->set_batch_stride(0);
  EXPECT_THAT(ParsedProduct(request, &kNoneHeld), IsOk());
  BlocksOfA(request).set_per_matrix(true);
  EXPECT_THAT(ParsedProduct(request, &kNoneHeld),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 bytes each for each of 2 matrices = 18")));
  BlocksOfA(request).set_factors(std::string(18, '\x7f'));
  const absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, &kNoneHeld);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_TRUE((*parsed)->job.problem.a_blocks.per_matrix);
}

// If there is no product, the factors may be absent and are not read.
TEST(ConvertBlocksTest, UnreadFactors) {
  Request request = ScaledRequest();
  request.set_alpha(0);
  const absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, &kNoneHeld);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ((*parsed)->job.a_scale.bytes, 0);
  BlocksOfA(request).clear_factors();
  EXPECT_THAT(ParsedProduct(request, &kNoneHeld), IsOk());
  BlocksOfA(request).set_factors("x");
  EXPECT_THAT(ParsedProduct(request, &kNoneHeld), StatusIs(absl::StatusCode::kInvalidArgument));
}

struct BlockRefusal {
  std::string name;
  std::function<void(Request&)> spoil;
  std::string message;
};

class BlockRefusalTest : public testing::TestWithParam<BlockRefusal> {};

TEST_P(BlockRefusalTest, SaysWhatAndWhy) {
  Request request = ScaledRequest();
  GetParam().spoil(request);
  EXPECT_THAT(ParsedProduct(request, &kNoneHeld),
              StatusIs(absl::StatusCode::kInvalidArgument, GetParam().message));
}

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

const std::vector<BlockRefusal>& BlockRefusals() {
  static const std::vector<BlockRefusal> refusals = {
      {"NoType", [](Request& r) { BlocksOfA(r).clear_type(); },
       "a.scale.blocks.type: got none, want f32, ue8m0 or ue4m3"},
      {"UnknownType", [](Request& r) { BlocksOfA(r).set_type(static_cast<v1::FactorType>(7)); },
       "a.scale.blocks.type: got unknown value 7"},
      {"NoRows", [](Request& r) { BlocksOfA(r).clear_rows_per_block(); },
       "a.scale.blocks.rows_per_block: got 0, want 1 or more"},
      {"NegativeDepth", [](Request& r) { BlocksOfA(r).set_k_per_block(-32); },
       "a.scale.blocks.k_per_block: got -32, want 1 or more"},
      {"OneFactorShort", [](Request& r) { BlocksOfA(r).mutable_factors()->pop_back(); },
       "a.scale.blocks.factors: got 8 bytes, want m/1 lines of k/32, each rounded up, 1 bytes each "
       "= 9"},
      {"OneFactorMore", [](Request& r) { BlocksOfA(r).mutable_factors()->push_back(0); },
       "a.scale.blocks.factors: got 10 bytes, want m/1 lines of k/32, each rounded up, 1 bytes "
       "each = 9"},
      {"FactorsOfB",
       [](Request& r) { r.mutable_b()->mutable_scale()->mutable_blocks()->clear_factors(); },
       "b.scale.blocks.factors: got 0 bytes, want n/2 lines of k/16, each rounded up, 4 bytes each "
       "= 60"},
      {"ValuesToo", [](Request& r) { r.mutable_a()->mutable_scale()->add_values(1); },
       "a.scale.values: got 1 values, want none beside blocks"},
      {"TypeOfOperand",
       [](Request& r) {
         r.mutable_a()->set_type(v1::ELEMENT_TYPE_S8);
         r.mutable_b()->set_type(v1::ELEMENT_TYPE_S8);
       },
       "a.scale.blocks: got factors for operands of type s8, want none (only e4m3, e5m2, e3m2, "
       "e2m3 and e2m1 have factors of blocks, and s8, u8, s4 and u4 times f16 or bf16)"},
      {"OfC",
       [](Request& r) {
         r.set_beta(1);
         r.mutable_c()->set_data(std::string(60, '\0'));
         r.mutable_c()->mutable_scale()->mutable_blocks();
       },
       "c.scale: got values, want none: only A and B are scaled"},
      {"Overflow",
       [](Request& r) {
         r.set_m(kMax / 64);
         r.set_n(0);
         r.mutable_a()->set_leading_dimension(70);
         BlocksOfA(r).set_type(v1::FACTOR_TYPE_F32);
         BlocksOfA(r).set_k_per_block(1);
       },
       "a: got 144115188075855871x70 elements of type e4m3, want sizes in bytes below 2^63"},
      {"OverflowOfFactorsAlone",
       [](Request& r) {
         r.set_m(kMax / 128);
         r.set_n(0);
         BlocksOfA(r).set_type(v1::FACTOR_TYPE_F32);
         BlocksOfA(r).set_k_per_block(1);
       },
       "a.scale.blocks: got f32 1x1 blocks of 72057594037927935x70 elements, want less than 2^63 "
       "bytes of factors"},
      {"HugeBatchOfFactors",
       [](Request& r) {
         r.set_batch(kMax / 2);
         r.set_m(1);
         r.set_n(0);
         r.mutable_a()->set_batch_stride(0);
         r.mutable_b()->set_batch_stride(0);
         BlocksOfA(r).set_per_matrix(true);
       },
       "a.scale.blocks: got ue8m0 1x32 blocks of 1x70 elements, want less than 2^63 bytes of "
       "factors"},
  };
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(All, BlockRefusalTest, testing::ValuesIn(BlockRefusals()),
                         [](const testing::TestParamInfo<BlockRefusal>& refusal) {
                           return refusal.param.name;
                         });

// The request made of an incident has the original factors.
TEST(ConvertBlocksTest, IncidentsKeepThem) {
  const Request request = ScaledRequest();
  const absl::StatusOr<std::unique_ptr<Product>> parsed = ParsedProduct(request, &kNoneHeld);
  ASSERT_THAT(parsed, IsOk());
  auto kept = std::make_shared<KeptProduct>();
  kept->problem = (*parsed)->job.problem;
  const auto bytes_of = [](const std::string& text) {
    const auto* const first = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(first, first + text.size());
  };
  kept->a = bytes_of(request.a().data());
  kept->b = bytes_of(request.b().data());
  kept->a_scale = bytes_of(request.a().scale().blocks().factors());
  kept->b_scale = bytes_of(request.b().scale().blocks().factors());
  EXPECT_EQ(kept->bytes(), 3 * 70 + 5 * 70 + 9 + 60);
  for (const bool without_operands : {false, true}) {
    const absl::StatusOr<Request> again =
        ProductOf({.incident = {}, .product = kept}, without_operands);
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->a().scale().SerializeAsString(), request.a().scale().SerializeAsString());
    EXPECT_EQ(again->b().scale().SerializeAsString(), request.b().scale().SerializeAsString());
  }
}

}  // namespace
}  // namespace gemmd
