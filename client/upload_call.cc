// SPDX-License-Identifier: Apache-2.0
#include "client/upload_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/steady_time.h"

namespace gemmd {
namespace {

class UploadCall {
 public:
  UploadCall(ClientSession& session, UploadPlan plan)
      : session_(session),
        plan_(std::move(plan)),
        total_(plan_.source.bytes()),
        watch_(plan_.terms, total_) {
    *first_.mutable_begin() = plan_.begin;
  }

  absl::StatusOr<v1::TensorInfo> Run() {
    const auto lanes = LanesFor(total_, plan_.connections, session_.upload_lanes());
    if (!lanes.ok()) return lanes.status();
    const SteadyTime start = SteadyTime::Now();
    int fruitless = 0;
    absl::Duration pause = absl::Milliseconds(100);
    while (true) {
      const int64_t before = done_;
      auto tensor = RunRound(*lanes);
      if (tensor.ok()) {
        // What was there before, or broke, says nothing of the connections.
        const bool is_whole = rounds_ == 1 && done_ == 0;
        if (is_whole) session_.upload_lanes().Tell(total_, *lanes, SteadyTime::Now() - start);
        watch_.Finish();
        return tensor;
      }
      if (!IsBrokenConnection(tensor.status())) return Explained(tensor.status());
      if (done_ > before) {
        fruitless = 0;
        pause = absl::Milliseconds(100);
      }
      if (++fruitless == kMostFruitlessTries) return tensor.status();
      if (absl::Status status = Pause(pause); !status.ok()) return status;
      pause = std::min(2 * pause, absl::Seconds(2));
    }
  }

 private:
  absl::StatusOr<v1::TensorInfo> RunRound(int most_lanes) {
    const auto first_lane = session_.Lanes(1);
    if (!first_lane.ok()) return first_lane.status();
    ++rounds_;
    UploadRound round(plan_.source, lent_, session_, watch_.deadline());
    round.Open((*first_lane)[0], first_);
    const auto state = round.AwaitState([&](int64_t /*sent*/) { return watch_.Look(done_); });
    int64_t missing = 0;
    if (state.has_value()) {
      for (const v1::ByteRange& range : state->missing()) missing += range.bytes();
      done_ = total_ - missing;
      if (!state->upload().empty()) {
        first_.set_join(state->upload());
        JoinWith(round, LanesWithin(missing, most_lanes));
      }
    }
    round.AwaitEnd([&](int64_t sent) { return watch_.Look(done_ + std::min(sent, missing)); });
    if (round.tensor().has_value()) return *round.tensor();
    if (!round.status().ok()) return round.status();
    return absl::UnavailableError(
        "put: the server ended its streams before the tensor was complete");
  }

  void JoinWith(UploadRound& round, int lanes) {
    if (lanes == 1) return;
    const auto channels = session_.Lanes(lanes);
    // Without them the upload is slower.
    if (!channels.ok()) return;
    for (size_t i = 1; i < channels->size(); ++i) round.Open((*channels)[i], first_);
  }

  // The answer to a complete upload may have been lost with its connection.
  absl::Status Explained(const absl::Status& status) const {
    if (!absl::IsNotFound(status) || !first_.has_join()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), "; it was lost, or complete when its connection broke"));
  }

  absl::Status Pause(absl::Duration pause) {
    for (absl::Duration left = pause; left > absl::ZeroDuration(); left -= kLookEvery) {
      absl::SleepFor(std::min(left, kLookEvery));
      if (absl::Status status = watch_.Look(done_); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  ClientSession& session_;
  const UploadPlan plan_;
  const int64_t total_;
  TransferWatch watch_;
  LentBytes lent_;
  v1::PutRequest first_;  // Begins the upload, then joins it.
  int rounds_ = 0;
  int64_t done_ = 0;  // What the server had when the round began.
};

}  // namespace

absl::StatusOr<v1::TensorInfo> RunUpload(ClientSession& session, UploadPlan plan) {
  return UploadCall(session, std::move(plan)).Run();
}

}  // namespace gemmd
