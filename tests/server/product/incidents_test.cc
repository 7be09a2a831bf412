// SPDX-License-Identifier: Apache-2.0
//
// What is kept of wrong answers: how many, and the operands of which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/product/verification.h"
#include "tests/testing/scratch_folder.h"

namespace gemmd {
namespace {

std::shared_ptr<KeptProduct> Operands(size_t bytes, size_t factors = 0) {
  auto product = std::make_shared<KeptProduct>();
  product->problem.m = static_cast<int64_t>(bytes);
  product->a.resize(bytes);
  product->a_scale.resize(factors * sizeof(float));
  return product;
}

// Newest first: '+' with operands, '-' without operands, '0' if nothing of the product is kept.
std::string Kept(const IncidentLog& log) {
  std::string kept;
  for (const IncidentLog::Entry& entry : log.entries()) {
    kept += entry.has_operands() ? '+' : entry.product != nullptr ? '-' : '0';
  }
  return kept;
}

TEST(IncidentLogTest, KeepsTheLatestOperandsAndAllElseOfTheOthers) {
  IncidentLog log({.max_kept_bytes = 100});
  EXPECT_EQ(log.Add({}, Operands(40)), 1);
  log.Add({}, Operands(50));
  EXPECT_EQ(Kept(log), "++");
  log.Add({}, Operands(30));
  EXPECT_EQ(Kept(log), "++-");
  // Operands that are too large evict earlier ones and are not kept themselves.
  log.Add({}, Operands(101));
  EXPECT_EQ(Kept(log), "----");
  log.Add({}, Operands(100));
  EXPECT_EQ(Kept(log), "+----");
  const IncidentLog::Entry last = log.entries().back();
  EXPECT_EQ(last.product->problem.m, 40);
  EXPECT_TRUE(last.product->a.empty());
}

TEST(IncidentLogTest, KeepsFactorsUpToABound) {
  constexpr size_t kMax = IncidentLog::kMaxScaleBytes / sizeof(float);
  IncidentLog log({.max_kept_bytes = 1000});
  log.Add({}, Operands(1, kMax));
  log.Add({}, Operands(1, kMax + 1));
  EXPECT_EQ(Kept(log), "0-");
  EXPECT_EQ(log.entries().back().product->a_scale.size(), kMax * sizeof(float));
}

// Of a product whose operands are too large to be kept, block factors may remain.
TEST(IncidentLogTest, KeepsFactorsAloneUpToTheSameBound) {
  IncidentLog log((IncidentLog::Options()));
  const auto factors_of_blocks = [](size_t bytes) {
    auto product = std::make_shared<KeptProduct>();
    product->has_operands = false;
    product->b_scale.resize(bytes);
    return product;
  };
  log.Add({}, factors_of_blocks(IncidentLog::kMaxScaleBytes));
  log.Add({}, factors_of_blocks(IncidentLog::kMaxScaleBytes + 1));
  EXPECT_EQ(Kept(log), "0-");
}

TEST(IncidentLogTest, ForgetsTheOldestAndItsBytes) {
  IncidentLog log({.max_kept_bytes = 100, .max_incidents = 3});
  for (int i = 0; i < 50; ++i) log.Add({}, Operands(30));
  EXPECT_EQ(Kept(log), "+++");
  EXPECT_EQ(log.found(), 50);
  EXPECT_EQ(log.entries().front().incident.id, 50);
}

TEST(IncidentLogTest, TheLogSaysWhatWasWrong) {
  Incident incident;
  incident.id = 7;
  incident.element.got_bits = 0x3f800001;
  incident.element.want_bits = 0x3f800000;
  incident.wrong_elements = 2;
  incident.b_sha256 = "b0b1";
  incident.chip_state = "71 C";
  // Text from a caller cannot forge a field.
  incident.request_id = "x out=true";
  EXPECT_EQ(LogFieldsOf(incident),
            " id=7 element_type=f32 got_bits=0x3f800001 want_bits=0x3f800000 wrong_elements=2 "
            "b_sha256=b0b1 chip_state=\"71 C\" request_id=\"x out=true\"");
}

}  // namespace
}  // namespace gemmd
