// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "server/crossing/shared_memory.h"
#include "server/store/placed_bytes.h"
#include "server/store/tensor.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

// The flags of the mapping that contains this address; empty if there is none.
std::string FlagsOf(const std::byte* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream file("/proc/self/smaps");
  bool is_wanted = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    uintptr_t first = 0;
    uintptr_t end = 0;
    char dash = 0;
    if (words >> std::hex >> first >> dash >> end && dash == '-') {
      is_wanted = first <= wanted && wanted < end;
    } else if (is_wanted && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST(HostMemoryTest, IsZerosFromEndToEnd) {
  for (const int64_t bytes : {int64_t{1}, kMebi - 1, kMebi, 2 * kMebi, 5 * kMebi + 3}) {
    const auto memory = HostMemory::Allocate(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    ASSERT_EQ(memory->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(memory->data(), memory->data() + bytes, [](std::byte byte) {
      return byte == std::byte{0};
    })) << bytes;
    std::fill_n(memory->data(), bytes, std::byte{1});
  }
}

TEST(HostMemoryTest, LongMemoryBeginsAtAHugePageAndAsksForThem) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) return;
  for (const int64_t bytes : {2 * kMebi, 7 * kMebi + 1}) {
    const auto memory = HostMemory::Allocate(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2 * kMebi), 0u);
    EXPECT_NE(FlagsOf(memory->data()).find(" hg "), std::string::npos);
    EXPECT_NE(FlagsOf(memory->data() + bytes - 1).find(" hg "), std::string::npos);
  }
}

TEST(HostMemoryTest, LongMemoryIsGivenBackAtOnceAndWhole) {
  constexpr int64_t kBytes = 256 * kMebi;
  const std::byte* data = nullptr;
  {
    const auto memory = HostMemory::Allocate(kBytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    data = memory->data();
    ASSERT_NE(FlagsOf(data), "");
  }
  EXPECT_EQ(FlagsOf(data).find(" hg "), std::string::npos);
  EXPECT_EQ(FlagsOf(data + kBytes - 1).find(" hg "), std::string::npos);
}

// What is not charged takes nothing of the memory that workers share.
TEST(HostMemoryTest, PrivateMemoryIsNotShared) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers leave too few addresses";
  const auto is_right = [] {
    if (!SharedMemory::OpenForProcess(/*has_tensors=*/true).ok()) return 2;
    const auto account = std::make_shared<Account>("all", "--all", kMebi, nullptr);
    const auto background = std::make_shared<ThreadPool>("background", 1);
    const auto charged = TensorBytes::Allocate(kMebi, *account, background).value();
    const auto uncharged = TensorBytes::AllocateUncharged(kMebi, *account, {}, background).value();
    SharedMemory* const shared = SharedMemory::OfProcess();
    return shared->OffsetOf(charged->host()) && !shared->OffsetOf(uncharged->host()) ? 0 : 1;
  };
  // In another process, because it is for all of a process.
  EXPECT_EXIT(_exit(is_right()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gemmd
