// SPDX-License-Identifier: Apache-2.0
#include "server/wire/received_slices.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <memory>
#include <new>

#include "server/system/clock.h"

namespace gemmd {
namespace {

// As many as a byte buffer of gRPC 1.51 has room for within itself.
constexpr size_t kMostAtOnce = 8;

// Some 2 MiB, which take less than a millisecond.
constexpr size_t kMostInPlace = 256;
constexpr int64_t kMostNs = 1'000'000;

void Free(SliceList& slices, size_t first, size_t count) {
  for (const size_t end = first + count; first < end; first += kMostAtOnce) {
    const size_t next = std::min(first + kMostAtOnce, end);
    const grpc::ByteBuffer last(slices.data() + first, next - first);
    std::fill(slices.begin() + static_cast<ptrdiff_t>(first),
              slices.begin() + static_cast<ptrdiff_t>(next), grpc::Slice());
  }
}

// Frees slices on threads of gRPC's, and then itself. Others that wait for such a thread come
// between two pieces.
class Disposal {
 public:
  void Begin(SliceList& slices) {
    slices_.swap(slices);
    FreeLater();
  }

 private:
  void FreeLater() {
    alarm_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [this](bool /*ok*/) { FreeSome(); });
  }
  void FreeSome() {
    const SteadyClock clock;
    const int64_t until_ns = clock.NowNs() + kMostNs;
    while (next_ < slices_.size() && clock.NowNs() < until_ns) {
      const size_t count = std::min(kMostAtOnce, slices_.size() - next_);
      Free(slices_, next_, count);
      next_ += count;
    }
    if (next_ < slices_.size()) return FreeLater();
    delete this;
  }

  grpc::Alarm alarm_;
  SliceList slices_;
  size_t next_ = 0;
};

}  // namespace

void ReceivedSlices::LetGo(size_t first, size_t count) {
  if (!is_kept_elsewhere_) return Free(*this, first, count);
  std::fill_n(begin() + static_cast<ptrdiff_t>(first), count, grpc::Slice());
}

void ReceivedSlices::EraseBefore(size_t begin) {
  LetGo(0, begin);
  erase(this->begin(), this->begin() + static_cast<ptrdiff_t>(begin));
}

void ReceivedSlices::Drop() noexcept {
  if (is_kept_elsewhere_) return;
  const auto is_empty = [](const grpc::Slice& slice) { return slice.size() == 0; };
  erase(std::remove_if(begin(), end(), is_empty), end());
  if (size() > kMostInPlace) {
    try {
      auto disposal = std::make_unique<Disposal>();
      disposal.release()->Begin(*this);
    } catch (const std::bad_alloc&) {  // Then the caller's thread has to do it.
    }
  }
  LetGo(0, size());
}

}  // namespace gemmd
