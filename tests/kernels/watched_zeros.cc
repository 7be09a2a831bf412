// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/watched_zeros.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>

namespace gemmd {
namespace {

constexpr int64_t kPageBytes = 4096;

std::atomic<PageWatch*> watch = nullptr;
struct sigaction before;
stack_t stack_before;
// oneDNN's code for sgemm has its stack pointer in its own memory, which the frame of a signal
// would overwrite.
alignas(16) std::array<std::byte, 1 << 16> signal_stack;

}  // namespace

Zeros::Zeros(int64_t bytes) : bytes_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped != MAP_FAILED) data_ = static_cast<std::byte*>(mapped);
}

Zeros::~Zeros() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

PageWatch::PageWatch(const Zeros& zeros, int64_t pages_until_abort, std::atomic<bool>& abort)
    : begin_(zeros.data()),
      pages_((static_cast<int64_t>(zeros.bytes().size()) + kPageBytes - 1) / kPageBytes),
      pages_until_abort_(pages_until_abort),
      abort_(abort) {
  EXPECT_EQ(watch.exchange(this), nullptr);
  stack_t stack = {};
  stack.ss_sp = signal_stack.data();
  stack.ss_size = signal_stack.size();
  EXPECT_EQ(sigaltstack(&stack, &stack_before), 0);
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = [](int signal, siginfo_t* info, void* context) {
    OnFault(signal, info, context);
  };
  EXPECT_EQ(sigaction(SIGSEGV, &action, &before), 0);
  EXPECT_EQ(mprotect(begin_, static_cast<size_t>(pages_ * kPageBytes), PROT_NONE), 0);
}

PageWatch::~PageWatch() {
  EXPECT_EQ(mprotect(begin_, static_cast<size_t>(pages_ * kPageBytes), PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(sigaction(SIGSEGV, &before, nullptr), 0);
  EXPECT_EQ(sigaltstack(&stack_before, nullptr), 0);
  watch = nullptr;
}

// Calls nothing that a signal handler must not call. Any other fault happens again, to whoever
// handled it before.
void PageWatch::OnFault(int signal, void* info, void*) {
  PageWatch& self = *watch.load();
  auto* const at = static_cast<std::byte*>(static_cast<siginfo_t*>(info)->si_addr);
  if (at < self.begin_ || at >= self.begin_ + self.pages_ * kPageBytes) {
    sigaction(signal, &before, nullptr);
    return;
  }
  const int64_t page = (at - self.begin_) / kPageBytes;
  if (++self.touched_ == self.pages_until_abort_) self.abort_.store(true);
  mprotect(self.begin_ + page * kPageBytes, kPageBytes, PROT_READ | PROT_WRITE);
}

}  // namespace gemmd
