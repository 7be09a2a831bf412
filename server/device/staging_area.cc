// SPDX-License-Identifier: Apache-2.0
#include "server/device/staging_area.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "kernels/matrix/status.h"

namespace gemmd {

StagingRange::~StagingRange() {
  if (area_ != nullptr && bytes_ > 0) area_->GiveBack(offset_, bytes_);
}

absl::Span<std::byte> StagingRange::bytes() const {
  if (bytes_ == 0) return {};
  return area_->staging_.matrices().subspan(static_cast<size_t>(offset_),
                                            static_cast<size_t>(bytes_));
}

bool StagingRange::is_for_results() const {
  return area_ != nullptr && offset_ >= area_->results_begin_;
}

absl::StatusOr<std::shared_ptr<StagingArea>> StagingArea::Create(int64_t bytes,
                                                                 std::shared_ptr<const Waker> waker,
                                                                 bool poisons_freed) {
  ASSIGN_OR_RETURN(Staging staging, Staging::Create(bytes));
  return std::shared_ptr<StagingArea>(
      new StagingArea(std::move(staging), std::move(waker), poisons_freed));
}

int64_t StagingArea::BytesForJobs(int64_t bytes) {
  constexpr int64_t kAlignment = FreeRanges::kAlignment;
  return (bytes - bytes / 3) / kAlignment * kAlignment;
}

StagingArea::StagingArea(Staging staging, std::shared_ptr<const Waker> waker, bool poisons_freed)
    : staging_(std::move(staging)),
      waker_(std::move(waker)),
      poisons_freed_(poisons_freed),
      results_begin_(BytesForJobs(bytes())),
      for_jobs_(results_begin_),
      for_results_(bytes() - results_begin_) {}

bool StagingArea::Take(int64_t in_bytes, int64_t out_bytes, bool out_may_stay, StagingRange& in,
                       StagingRange& out) {
  MutexLock lock(&mutex_);
  const std::optional<int64_t> in_offset = for_jobs_.Take(in_bytes);
  std::optional<int64_t> out_offset;
  if (in_offset && out_may_stay && out_bytes > 0) {
    out_offset = for_results_.Take(out_bytes);
    if (out_offset) *out_offset += results_begin_;
  }
  if (in_offset && !out_offset) out_offset = for_jobs_.Take(out_bytes);
  if (in_offset && !out_offset) for_jobs_.GiveBack(*in_offset, in_bytes);
  if (!in_offset || !out_offset) {
    is_wanted_ = true;
    return false;
  }
  in = StagingRange(shared_from_this(), *in_offset, in_bytes);
  out = StagingRange(shared_from_this(), *out_offset, out_bytes);
  return true;
}

void StagingArea::GiveBack(int64_t offset, int64_t bytes) {
  if (poisons_freed_) {
    Poison(staging_.matrices().subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes)));
  }
  bool is_wanted = false;
  {
    MutexLock lock(&mutex_);
    if (offset >= results_begin_) {
      for_results_.GiveBack(offset - results_begin_, bytes);
    } else {
      for_jobs_.GiveBack(offset, bytes);
    }
    is_wanted = std::exchange(is_wanted_, false);
  }
  if (is_wanted) waker_->Wake();
}

int64_t StagingArea::taken_bytes() const {
  MutexLock lock(&mutex_);
  return for_jobs_.taken_bytes() + for_results_.taken_bytes();
}

ResultStamps::ResultStamps() {
  std::random_device source;
  for (size_t i = 0; i < kBytes; i += sizeof(uint32_t)) {
    const auto word = static_cast<uint32_t>(source());
    std::memcpy(stamp_.data() + i, &word, sizeof(word));
  }
}

void ResultStamps::Put(absl::Span<std::byte> d) const {
  for (size_t at = 0; at < d.size(); at += kPageBytes) {
    const size_t bytes = std::min(kBytes, d.size() - at);
    if (bytes >= kMinBytes) {
      std::memcpy(d.data() + at, stamp_.data(), bytes);
    } else {
      std::memset(d.data() + at, 0, bytes);
    }
  }
}

bool ResultStamps::AreLeft(absl::Span<const std::byte> d, size_t first_bytes) const {
  for (size_t at = 0; at + kMinBytes <= d.size(); at += kPageBytes) {
    const size_t bytes = std::min(at == 0 ? first_bytes : kBytes, d.size() - at);
    if (std::memcmp(d.data() + at, stamp_.data(), bytes) == 0) return true;
  }
  return false;
}

}  // namespace gemmd
