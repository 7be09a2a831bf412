// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/watched_zeros.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <new>

namespace gemmd {
namespace {

constexpr int64_t kPageBytes = 4096;
// Of the processor's flags: it stops after the next instruction.
constexpr greg_t kTrapFlag = 0x100;

// What the handlers of signals use.
std::atomic<PageWatch*> page_watch = nullptr;
std::atomic<std::byte*> flag_page = nullptr;
std::atomic<int64_t> looks = 0;
std::atomic<bool> counts_looks = false;

struct sigaction before_segv;
struct sigaction before_trap;
stack_t before_stack;
// oneDNN's code for sgemm has its stack pointer in its own memory, which the frame of a signal
// would overwrite.
alignas(16) std::array<std::byte, 1 << 16> signal_stack;

void Protect(std::byte* begin, int64_t count, int protection) {
  // A handler can do nothing about a failure; the access then faults again, forever.
  (void)mprotect(begin, static_cast<size_t>(count * kPageBytes), protection);
}

greg_t& ProcessorFlags(void* context) {
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
}

// Lets a look at the flag happen, and stops after it.
bool Look(const std::byte* at, void* context) {
  std::byte* const page = flag_page.load();
  if (at < page || at >= page + kPageBytes) return false;
  Protect(page, 1, PROT_READ | PROT_WRITE);
  if (++looks >= WatchedFlag::kMaxLooks) counts_looks = false;
  if (counts_looks) ProcessorFlags(context) |= kTrapFlag;
  return true;
}

// Any fault but those that are watched for happens again, to whoever handled it before.
void OnFault(int signal, siginfo_t* info, void* context) {
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  PageWatch* const watch = page_watch.load();
  if (watch != nullptr && watch->Touch(at)) return;
  if (!Look(at, context)) sigaction(signal, &before_segv, nullptr);
}

void OnTrap(int, siginfo_t*, void* context) {
  ProcessorFlags(context) &= ~kTrapFlag;
  if (counts_looks) Protect(flag_page.load(), 1, PROT_NONE);
}

void Handle(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction& before) {
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = handler;
  EXPECT_EQ(sigaction(signal, &action, &before), 0);
}

}  // namespace

Zeros::Zeros(int64_t bytes) : bytes_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped != MAP_FAILED) data_ = static_cast<std::byte*>(mapped);
}

Zeros::~Zeros() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

WatchedFlag::WatchedFlag() : page_(kPageBytes), flag_(new (page_.data()) std::atomic<bool>(false)) {
  EXPECT_EQ(flag_page.exchange(page_.data()), nullptr);
  looks = 0;
  counts_looks = false;
  stack_t stack = {};
  stack.ss_sp = signal_stack.data();
  stack.ss_size = signal_stack.size();
  EXPECT_EQ(sigaltstack(&stack, &before_stack), 0);
  Handle(SIGSEGV, OnFault, before_segv);
  Handle(SIGTRAP, OnTrap, before_trap);
}

WatchedFlag::~WatchedFlag() {
  TakeLooks();
  EXPECT_EQ(sigaction(SIGSEGV, &before_segv, nullptr), 0);
  EXPECT_EQ(sigaction(SIGTRAP, &before_trap, nullptr), 0);
  EXPECT_EQ(sigaltstack(&before_stack, nullptr), 0);
  flag_page = nullptr;
}

void WatchedFlag::CountLooks() {
  counts_looks = true;
  Protect(page_.data(), 1, PROT_NONE);
}

int64_t WatchedFlag::TakeLooks() {
  counts_looks = false;
  Protect(page_.data(), 1, PROT_READ | PROT_WRITE);
  return looks;
}

PageWatch::PageWatch(const Zeros& zeros, int64_t pages_until_abort, WatchedFlag& flag)
    : begin_(zeros.data()),
      pages_((static_cast<int64_t>(zeros.bytes().size()) + kPageBytes - 1) / kPageBytes),
      pages_until_abort_(pages_until_abort),
      flag_(flag) {
  EXPECT_EQ(page_watch.exchange(this), nullptr);
  Protect(begin_, pages_, PROT_NONE);
}

PageWatch::~PageWatch() {
  page_watch = nullptr;
  Protect(begin_, pages_, PROT_READ | PROT_WRITE);
}

bool PageWatch::Touch(const std::byte* at) {
  if (at < begin_ || at >= begin_ + pages_ * kPageBytes) return false;
  Protect(begin_ + (at - begin_) / kPageBytes * kPageBytes, 1, PROT_READ | PROT_WRITE);
  if (++touched_ == pages_until_abort_) {
    flag_.flag_->store(true);
    flag_.CountLooks();
  }
  return true;
}

}  // namespace gemmd
