// SPDX-License-Identifier: Apache-2.0
//
// What is kept of wrong answers: how many of them, and whose operands.
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

// The newest first: '+' with operands, '-' without them, '0' where nothing is kept of the product.
std::string Kept(const IncidentLog& log) {
  std::string kept;
  for (const IncidentLog::Entry& entry : log.entries()) {
    kept += entry.has_operands() ? '+' : entry.product != nullptr ? '-' : '0';
  }
  return kept;
}

TEST(IncidentLogTest, KeepsTheLatestOperandsAndAllElseOfTheOthers) {
  IncidentLog log({.file = "", .max_kept_bytes = 100});
  EXPECT_EQ(log.Add({}, Operands(40)), 1);
  log.Add({}, Operands(50));
  EXPECT_EQ(Kept(log), "++");
  log.Add({}, Operands(30));
  EXPECT_EQ(Kept(log), "++-");
  // One that is too large costs those before it, and is not kept.
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
  IncidentLog log({.file = "", .max_kept_bytes = 1000});
  log.Add({}, Operands(1, kMax));
  log.Add({}, Operands(1, kMax + 1));
  EXPECT_EQ(Kept(log), "0-");
  EXPECT_EQ(log.entries().back().product->a_scale.size(), kMax * sizeof(float));
}

// What is left of a product with operands that are too long to be kept may be factors of blocks.
TEST(IncidentLogTest, KeepsFactorsAloneUpToTheSameBound) {
  IncidentLog log({.file = ""});
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
  IncidentLog log({.file = "", .max_kept_bytes = 100, .max_incidents = 3});
  for (int i = 0; i < 50; ++i) log.Add({}, Operands(30));
  EXPECT_EQ(Kept(log), "+++");
  EXPECT_EQ(log.found(), 50);
  EXPECT_EQ(log.entries().front().incident.id, 50);
}

TEST(IncidentLogTest, WritesLinesWhileThereIsRoom) {
  const ScratchFolder folder;
  const std::string path = folder.Path("incidents");
  const auto size = [&path] { return std::filesystem::file_size(path); };
  IncidentLog log({.file = path, .max_file_bytes = 1000});
  log.Add({}, nullptr);
  const auto line = size();
  log.Add({}, nullptr);
  EXPECT_EQ(size(), 2 * line);
  for (int i = 0; i < 20; ++i) log.Add({}, nullptr);
  EXPECT_LE(size(), 1000);
  EXPECT_GE(size(), 1000 - line);
  EXPECT_EQ(log.found(), 22);
}

// Opening it to write would last until somebody reads it.
TEST(IncidentLogTest, APipeHoldsUpNobody) {
  const ScratchFolder folder;
  const std::string pipe = folder.Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  IncidentLog log({.file = pipe});
  EXPECT_EQ(log.Add({}, nullptr), 1);
  EXPECT_EQ(log.found(), 1);
}

}  // namespace
}  // namespace gemmd
