// SPDX-License-Identifier: Apache-2.0
#include "client/transfer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/steady_time.h"

namespace gemmd {
namespace {

constexpr int kMostLanes = 16;

}  // namespace

absl::StatusOr<int> LanesFor(int64_t bytes, int asked, LaneChoice& choice) {
  if (asked < 0 || asked > kMostLanes) {
    return absl::InvalidArgumentError(
        absl::StrCat("connections: got ", asked, ", want 0 to ", kMostLanes));
  }
  return LanesWithin(bytes, asked > 0 ? asked : choice.For(bytes, kTransferChunkBytes));
}

int LanesWithin(int64_t bytes, int lanes) {
  const int64_t chunks =
      std::max<int64_t>(1, (bytes + kTransferChunkBytes - 1) / kTransferChunkBytes);
  return static_cast<int>(std::min<int64_t>(lanes, chunks));
}

bool IsBrokenConnection(const absl::Status& status) { return absl::IsUnavailable(status); }

TransferWatch::TransferWatch(TransferTerms terms, int64_t bytes_total)
    : terms_(std::move(terms)),
      start_(SteadyTime::Now()),
      deadline_(terms_.entry +
                std::max(terms_.timeout.value_or(absl::InfiniteDuration()), absl::ZeroDuration())),
      total_(bytes_total),
      moved_at_(start_) {}

absl::Status TransferWatch::Look(int64_t bytes_done) {
  const SteadyTime now = SteadyTime::Now();
  if (bytes_done != moved_bytes_) {
    moved_bytes_ = bytes_done;
    moved_at_ = now;
  }
  Tell(bytes_done);
  if (!(now < deadline_)) {
    return absl::DeadlineExceededError(absl::StrCat("transfer: ", bytes_done, " of ", total_,
                                                    " bytes within ",
                                                    absl::FormatDuration(*terms_.timeout)));
  }
  if (terms_.timeout.has_value() || now - moved_at_ < terms_.patience) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("transfer: ", bytes_done, " of ", total_,
                                                  " bytes, and none for ",
                                                  absl::FormatDuration(terms_.patience)));
}

void TransferWatch::Finish() { Tell(total_); }

void TransferWatch::Tell(int64_t bytes_done) const {
  if (!terms_.progress) return;
  terms_.progress(
      {.bytes_done = bytes_done, .bytes_total = total_, .elapsed = SteadyTime::Now() - start_});
}

}  // namespace gemmd
