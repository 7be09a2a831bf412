// SPDX-License-Identifier: Apache-2.0
//
// A budget that fills at a constant rate up to a bound.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace gemmd {

// Plain bytes, because gRPC stores the one of a connection. All zeros: a full bucket, unused so
// far. Threads: any.
struct TokenBucket {
  struct Rate {
    int64_t price_ns = 0;  // The time in which one more comes.
    int64_t max_ns = 0;    // The time in which an empty bucket fills.
  };
  // `count` at once, and as many in each second after that.
  static constexpr Rate EachSecond(int64_t count) {
    return {.price_ns = 1'000'000'000 / count, .max_ns = 1'000'000'000 / count * count};
  }

  int64_t whole_ns = 0;  // When the bucket is whole again.

  // Whether `cost` is left.
  bool Has(int64_t cost, const Rate& rate, int64_t now_ns) {
    return After(std::atomic_ref(whole_ns).load(), cost, rate, now_ns) <= now_ns + rate.max_ns;
  }
  // Takes `cost` if that much is left, otherwise nothing. Returns whether it did.
  bool Take(int64_t cost, const Rate& rate, int64_t now_ns) {
    const std::atomic_ref whole(whole_ns);
    int64_t before_ns = whole.load();
    int64_t after_ns = 0;
    do {
      after_ns = After(before_ns, cost, rate, now_ns);
      if (after_ns > now_ns + rate.max_ns) return false;
    } while (!whole.compare_exchange_weak(before_ns, after_ns));
    return true;
  }
  // Takes `cost`, whether or not so much is left.
  void Charge(int64_t cost, const Rate& rate, int64_t now_ns) {
    const std::atomic_ref whole(whole_ns);
    int64_t before_ns = whole.load();
    while (!whole.compare_exchange_weak(before_ns, After(before_ns, cost, rate, now_ns))) {
    }
  }
  bool IsWhole(int64_t now_ns) { return std::atomic_ref(whole_ns).load() <= now_ns; }

  // Whether anything was taken since Forgive.
  bool is_used() { return std::atomic_ref(whole_ns).load() != 0; }
  // Marks a full bucket as unused.
  void Forgive(int64_t now_ns) {
    int64_t paid_ns = std::atomic_ref(whole_ns).load();
    if (paid_ns <= now_ns) std::atomic_ref(whole_ns).compare_exchange_strong(paid_ns, 0);
  }

 private:
  static int64_t After(int64_t whole_ns, int64_t cost, const Rate& rate, int64_t now_ns) {
    return std::max(whole_ns, now_ns) + cost * rate.price_ns;
  }
};

}  // namespace gemmd
