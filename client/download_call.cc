// SPDX-License-Identifier: Apache-2.0
#include "client/download_call.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/chunk_message.h"
#include "client/status_conversion.h"
#include "client/steady_time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"
#include "proto/deadline_after.h"

namespace gemmd {
namespace {

constexpr char kGetMethod[] = "/gemmd.v1.Tensors/Get";

// Pieces that one connection asks for at a time: a few for each, so that a slow one takes fewer.
constexpr int64_t kLeastPieceBytes = int64_t{16} << 20;
constexpr int64_t kPiecesOfLane = 8;

// Bytes of the range that was asked for.
struct Piece {
  int64_t offset = 0;
  int64_t end = 0;
};

// One call of Get. Its reactions come one after the other.
class PieceStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  PieceStream(const DownloadPlan& plan, Piece piece, size_t lane, absl::Mutex& mutex,
              int64_t& taken)
      : plan_(plan), piece_(piece), lane_(lane), mutex_(mutex), taken_(taken) {}

  void Start(const std::shared_ptr<grpc::Channel>& channel, const ClientSession& session,
             SteadyTime deadline) {
    context_.set_deadline(DeadlineAfter(deadline - SteadyTime::Now()));
    session.AddMetadata(context_);
    stub_ = std::make_unique<grpc::GenericStub>(channel);
    stub_->PrepareBidiStreamingCall(&context_, kGetMethod, {}, this);
    v1::GetRequest request;
    *request.mutable_tensor() = plan_.tensor;
    request.set_offset(plan_.offset + piece_.offset);
    request.set_bytes(piece_.end - piece_.offset);
    outgoing_ = ToByteBuffer(request);
    StartWriteLast(&outgoing_, grpc::WriteOptions());
    StartRead(&incoming_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }
  size_t lane() const { return lane_; }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!ok) return;
    absl::Status status = Take();
    incoming_.Clear();
    if (!status.ok()) {
      absl::MutexLock lock(&mutex_);
      failure_ = status;
    }
    if (!status.ok()) Cancel();
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_ = failure_.ok() ? ToAbslStatus(status, context_) : failure_;
    is_done_ = true;
  }

  // These are for whoever holds the lock.
  bool is_done() const { return is_done_; }
  const absl::Status& status() const { return status_; }
  const std::optional<v1::TensorInfo>& tensor() const { return tensor_; }
  Piece rest() const { return piece_; }

 private:
  absl::Status Take() ABSL_LOCKS_EXCLUDED(mutex_) {
    auto step = ReadGetResponse(incoming_);
    if (!step.ok()) return step.status();
    if (!step->is_chunk) return TakeDescription(std::move(step->tensor));
    const int64_t first = step->offset - plan_.offset;
    if (first != piece_.offset || step->bytes > piece_.end - piece_.offset) {
      return absl::DataLossError(
          absl::StrCat("get: got ", step->bytes, " bytes from ", step->offset, " on, want at most ",
                       piece_.end - piece_.offset, " from ", plan_.offset + piece_.offset, " on"));
    }
    int64_t at = first;
    for (const grpc::Slice& slice : step->data) {
      const auto bytes = std::as_bytes(std::span(slice.begin(), slice.size()));
      if (absl::Status status = plan_.sink(at, bytes); !status.ok()) return status;
      at += static_cast<int64_t>(bytes.size());
    }
    absl::MutexLock lock(&mutex_);
    piece_.offset = at;
    taken_ += step->bytes;
    return absl::OkStatus();
  }

  absl::Status TakeDescription(v1::TensorInfo tensor) ABSL_LOCKS_EXCLUDED(mutex_) {
    const int64_t left = tensor.bytes() - plan_.offset;
    if (plan_.is_rest && left != plan_.bytes) {
      return absl::InvalidArgumentError(absl::StrCat("into: got ", plan_.bytes, " bytes, want ",
                                                     left, " for a tensor of ", tensor.bytes(),
                                                     " from byte ", plan_.offset, " on"));
    }
    absl::MutexLock lock(&mutex_);
    tensor_ = std::move(tensor);
    return absl::OkStatus();
  }

  const DownloadPlan& plan_;
  Piece piece_;  // What is left of it. Written under the lock, by the reactions.
  const size_t lane_;
  absl::Mutex& mutex_;  // That of the download.
  int64_t& taken_;      // Bytes of all streams, under that lock.

  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;

  // Under the lock.
  absl::Status failure_;
  absl::Status status_;
  bool is_done_ = false;
  std::optional<v1::TensorInfo> tensor_;
};

class DownloadCall {
 public:
  DownloadCall(ClientSession& session, DownloadPlan plan)
      : session_(session), plan_(std::move(plan)), watch_(plan_.terms, plan_.bytes) {}

  absl::StatusOr<v1::TensorInfo> Run() {
    const auto lanes = LanesFor(plan_.bytes, plan_.connections, session_.download_lanes());
    if (!lanes.ok()) return lanes.status();
    const SteadyTime start = SteadyTime::Now();
    const auto channels = session_.Lanes(*lanes);
    if (!channels.ok()) return channels.status();
    lanes_ = *lanes;
    CutPieces();
    for (size_t lane = 0; lane < channels->size(); ++lane) idle_lanes_.push_back(lane);
    while (!(pieces_.empty() && streams_.empty())) {
      StartPieces(*channels);
      AwaitEvent();
      TakeEnded();
      if (status_.ok()) status_ = watch_.Look(taken());
      if (!status_.ok()) {
        pieces_.clear();
        for (const auto& stream : streams_) stream->Cancel();
      }
    }
    if (!status_.ok()) return status_;
    if (!tensor_.has_value()) return absl::DataLossError("get: got no description of the tensor");
    const bool has_broken = taken_at_break_ >= 0;
    if (!has_broken) session_.download_lanes().Tell(plan_.bytes, lanes_, SteadyTime::Now() - start);
    watch_.Finish();
    return *tensor_;
  }

 private:
  void CutPieces() {
    const int64_t bytes = std::max(kLeastPieceBytes, plan_.bytes / (lanes_ * kPiecesOfLane));
    // A range without bytes has one piece too, which brings the description.
    int64_t at = 0;
    do {
      const int64_t end = plan_.bytes - at > bytes ? at + bytes : plan_.bytes;
      pieces_.push_back({at, end});
      at = end;
    } while (at < plan_.bytes);
  }

  void StartPieces(const std::vector<std::shared_ptr<grpc::Channel>>& channels) {
    if (SteadyTime::Now() < not_before_) return;
    while (!pieces_.empty() && !idle_lanes_.empty()) {
      const size_t lane = idle_lanes_.back();
      idle_lanes_.pop_back();
      streams_.push_back(
          std::make_unique<PieceStream>(plan_, pieces_.front(), lane, mutex_, taken_));
      pieces_.pop_front();
      streams_.back()->Start(channels[lane], session_, watch_.deadline());
    }
  }

  int64_t taken() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return taken_;
  }

  bool HasEnded() const {
    for (const auto& stream : streams_) {
      if (stream->is_done()) return true;
    }
    return false;
  }

  void AwaitEvent() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &DownloadCall::HasEnded), kLookEvery);
  }

  // Takes away the streams that have ended, and asks for the rest of broken ones again.
  void TakeEnded() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < streams_.size();) {
      if (!streams_[i]->is_done()) {
        ++i;
        continue;
      }
      Account(*streams_[i]);
      streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void Account(const PieceStream& stream) {
    idle_lanes_.push_back(stream.lane());
    if (stream.tensor().has_value()) tensor_ = stream.tensor();
    const Piece rest = stream.rest();
    absl::Status status = stream.status();
    if (status.ok() && rest.offset < rest.end) {
      status = absl::UnavailableError("get: the server ended its answer before its last byte");
    }
    if (status.ok() || !status_.ok()) return;
    if (!IsBrokenConnection(status)) {
      status_ = status;
      return;
    }
    if (taken_ > taken_at_break_) fruitless_ = 0;
    taken_at_break_ = taken_;
    // A server that goes breaks all connections at once.
    const int tries = ++fruitless_ / lanes_;
    if (tries >= kMostFruitlessTries) {
      status_ = status;
      return;
    }
    pieces_.push_front(rest);
    not_before_ = SteadyTime::Now() + absl::Milliseconds(100 << tries);
  }

  ClientSession& session_;
  const DownloadPlan plan_;
  TransferWatch watch_;

  absl::Mutex mutex_;  // Also of what the streams tell.
  int64_t taken_ = 0;  // Guarded by it.

  // Those of the caller who waits.
  int lanes_ = 1;
  std::deque<Piece> pieces_;  // Not asked for.
  std::vector<size_t> idle_lanes_;
  std::vector<std::unique_ptr<PieceStream>> streams_;
  std::optional<v1::TensorInfo> tensor_;
  absl::Status status_;
  int fruitless_ = 0;
  int64_t taken_at_break_ = -1;
  SteadyTime not_before_ = SteadyTime::InfinitePast();
};

}  // namespace

absl::StatusOr<v1::TensorInfo> RunDownload(ClientSession& session, DownloadPlan plan) {
  return DownloadCall(session, std::move(plan)).Run();
}

}  // namespace gemmd
