// SPDX-License-Identifier: Apache-2.0
#include "client/upload_round.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/chunk_message.h"
#include "client/status_conversion.h"
#include "client/steady_time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"
#include "proto/deadline_after.h"

namespace gemmd {
namespace {

constexpr char kPutMethod[] = "/gemmd.v1.Tensors/Put";

}  // namespace

// One stream. gRPC delivers OnDone once every operation and every hold is gone; the one hold here
// stands for writes that a thread of another stream starts, and goes when the reading has ended and
// no write is under way. What it remembers is guarded by the lock of its round.
class UploadRound::Stream final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(UploadRound& round, const std::shared_ptr<grpc::Channel>& channel) : round_(round) {
    context_.set_deadline(DeadlineAfter(round.deadline_ - SteadyTime::Now()));
    round.session_.AddMetadata(context_);
    stub_ = std::make_unique<grpc::GenericStub>(channel);
  }

  void Start(const v1::PutRequest& first) {
    stub_->PrepareBidiStreamingCall(&context_, kPutMethod, {}, this);
    AddHold();
    outgoing_ = ToByteBuffer(first);
    StartRead(&incoming_);
    StartWrite(&outgoing_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  // Sends the next chunk, or says that no more come, where it is this stream's turn to.
  void Proceed() ABSL_LOCKS_EXCLUDED(round_.mutex_) {
    bool closes = false;
    {
      absl::MutexLock lock(&round_.mutex_);
      if (is_writing_ || reading_ended_ || is_closed_ || !may_send_) return;
      const auto chunk = round_.TakeChunk();
      closes = !chunk.has_value() && round_.ShallClose();
      if (!chunk.has_value() && !closes) return;
      is_writing_ = true;
      is_closed_ = closes;
      if (chunk.has_value()) {
        chunk_bytes_ = static_cast<int64_t>(chunk->bytes.size());
        const grpc::Slice slices[] = {grpc::Slice(PutChunkHeader(chunk->offset, chunk_bytes_)),
                                      round_.lent_.Lend(chunk->bytes)};
        outgoing_ = grpc::ByteBuffer(slices, 2);
      }
    }
    if (closes) {
      StartWritesDone();
    } else {
      StartWrite(&outgoing_);
    }
  }

  // The lock of the round is held: clang cannot see that it is the caller's own.
  void AllowSending() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    round_.mutex_.AssertHeld();
    may_send_ = true;
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(round_.mutex_) {
    if (ok) {
      round_.OnAnswer(*this, ReadPutResponse(incoming_));
      incoming_.Clear();
      StartRead(&incoming_);
      Proceed();
      return;
    }
    bool releases = false;
    {
      absl::MutexLock lock(&round_.mutex_);
      reading_ended_ = true;
      releases = !is_writing_;
    }
    if (releases) RemoveHold();
  }

  void OnWriteDone(bool ok) override { WriteEnded(ok); }
  void OnWritesDoneDone(bool ok) override { WriteEnded(ok); }

  void OnDone(const grpc::Status& status) override {
    round_.OnStreamDone(ToAbslStatus(status, context_));
  }

 private:
  void WriteEnded(bool ok) ABSL_LOCKS_EXCLUDED(round_.mutex_) {
    outgoing_.Clear();
    bool releases = false;
    {
      absl::MutexLock lock(&round_.mutex_);
      is_writing_ = false;
      if (ok) round_.sent_ += std::exchange(chunk_bytes_, 0);
      releases = reading_ended_;
      // Nothing more can be written; that the reading ends too comes by itself.
      if (!ok) is_closed_ = true;
    }
    if (releases) {
      RemoveHold();
    } else {
      Proceed();
    }
  }

  UploadRound& round_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;  // The write under way.

  bool is_writing_ ABSL_GUARDED_BY(round_.mutex_) = true;  // The first message.
  bool may_send_ ABSL_GUARDED_BY(round_.mutex_) = false;   // The server has answered.
  bool is_closed_ ABSL_GUARDED_BY(round_.mutex_) = false;
  bool reading_ended_ ABSL_GUARDED_BY(round_.mutex_) = false;
  int64_t chunk_bytes_ ABSL_GUARDED_BY(round_.mutex_) = 0;
};

std::span<const std::byte> UploadSource::From(int64_t offset, int64_t most) const {
  const size_t at = static_cast<size_t>(offset);
  const auto piece = at < data.size() ? data.subspan(at) : padding.subspan(at - data.size());
  return piece.first(std::min(piece.size(), static_cast<size_t>(most)));
}

UploadRound::UploadRound(const UploadSource& source, LentBytes& lent, const ClientSession& session,
                         SteadyTime deadline)
    : source_(source), lent_(lent), session_(session), deadline_(deadline) {}

UploadRound::~UploadRound() = default;

void UploadRound::Open(const std::shared_ptr<grpc::Channel>& channel, const v1::PutRequest& first) {
  auto stream = std::make_unique<Stream>(*this, channel);
  Stream& started = *stream;
  {
    absl::MutexLock lock(&mutex_);
    streams_.push_back(std::move(stream));
    ++open_;
  }
  started.Start(first);
}

std::optional<v1::PutState> UploadRound::AwaitState(
    absl::FunctionRef<absl::Status(int64_t sent)> look) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(this, &UploadRound::HasState), kLookEvery)) {
        return state_;
      }
    }
    if (const absl::Status status = look(0); !status.ok()) Fail(status);
  }
}

void UploadRound::AwaitEnd(absl::FunctionRef<absl::Status(int64_t sent)> look) {
  while (true) {
    int64_t sent = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(this, &UploadRound::HasEnded), kLookEvery))
        return;
      sent = sent_;
    }
    if (const absl::Status status = look(sent); !status.ok()) Fail(status);
  }
}

std::optional<v1::TensorInfo> UploadRound::tensor() const {
  absl::MutexLock lock(&mutex_);
  return tensor_;
}

absl::Status UploadRound::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

std::optional<UploadRound::Chunk> UploadRound::TakeChunk() {
  if (!status_.ok() && !IsBrokenConnection(status_)) return std::nullopt;
  if (tensor_.has_value() || !state_.has_value()) return std::nullopt;
  const int64_t most = state_->max_chunk_bytes() > 0
                           ? std::min(kTransferChunkBytes, state_->max_chunk_bytes())
                           : kTransferChunkBytes;
  for (; next_range_ < state_->missing_size(); ++next_range_, next_in_range_ = 0) {
    const v1::ByteRange& range = state_->missing(next_range_);
    const int64_t left = range.bytes() - next_in_range_;
    if (left <= 0) continue;
    const int64_t offset = range.offset() + next_in_range_;
    const auto bytes = source_.From(offset, std::min(left, most));
    next_in_range_ += static_cast<int64_t>(bytes.size());
    return Chunk{offset, bytes};
  }
  return std::nullopt;
}

bool UploadRound::ShallClose() const { return has_broken_ || tensor_.has_value(); }

void UploadRound::OnAnswer(Stream& stream, absl::StatusOr<v1::PutResponse> answer) {
  absl::Status wrong = answer.status();
  bool is_complete = false;
  if (answer.ok()) {
    is_complete = answer->has_tensor();
    absl::MutexLock lock(&mutex_);
    if (answer->has_tensor()) {
      // Only the stream that began is told the factors.
      const bool is_fuller = answer->tensor().spec().scale().values_size() > 0;
      if (!tensor_ || is_fuller) tensor_ = std::move(*answer->mutable_tensor());
    }
    if (answer->has_state()) {
      for (const v1::ByteRange& range : answer->state().missing()) {
        int64_t end = 0;
        const bool lies_within = range.offset() >= 0 && range.bytes() >= 0 &&
                                 !__builtin_add_overflow(range.offset(), range.bytes(), &end) &&
                                 end <= source_.bytes();
        if (lies_within) continue;
        wrong = absl::DataLossError(absl::StrCat("put: the server wants ", range.bytes(),
                                                 " bytes from ", range.offset(),
                                                 " on of a tensor of ", source_.bytes(), " bytes"));
      }
      if (!state_.has_value()) state_ = std::move(*answer->mutable_state());
      if (wrong.ok()) stream.AllowSending();
    }
  }
  if (!wrong.ok()) Fail(wrong);
  // The others need not wait for the same answer.
  if (is_complete) {
    for (Stream* other : Streams()) other->Proceed();
  }
}

void UploadRound::OnStreamDone(const absl::Status& status) {
  bool is_fatal = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!tensor_.has_value()) has_broken_ = true;
    is_fatal = !status.ok() && !IsBrokenConnection(status);
    // What the server says weighs more than that another connection broke.
    if (status_.ok() || (IsBrokenConnection(status_) && is_fatal)) status_ = status;
  }
  // Streams that wait for more chunks now close their side, or end.
  if (is_fatal) Fail(status);
  for (Stream* stream : Streams()) stream->Proceed();
  // The last thing that touches the round.
  absl::MutexLock lock(&mutex_);
  --open_;
}

void UploadRound::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (status_.ok() || IsBrokenConnection(status_)) status_ = status;
  }
  for (Stream* stream : Streams()) stream->Cancel();
}

std::vector<UploadRound::Stream*> UploadRound::Streams() const {
  std::vector<Stream*> streams;
  absl::MutexLock lock(&mutex_);
  for (const auto& stream : streams_) streams.push_back(stream.get());
  return streams;
}

}  // namespace gemmd
