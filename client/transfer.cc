// SPDX-License-Identifier: Apache-2.0
#include "client/transfer.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/channel.h"
#include "client/client_session.h"
#include "client/product_call.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "kernels/matrix/status.h"
#include "proto/deadline_after.h"
#include "proto/field_start.h"

namespace gemmd {
namespace {

// Bytes of a tensor per message. Between 256 KiB and 4 MiB, the rate of one connection varies by
// less than a tenth; the rate of four connections grows up to this size.
constexpr int64_t kTransferChunkBytes = int64_t{2} << 20;

// The interval between checks of progress.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

// Max retries of a transfer with broken connections while no byte moves.
constexpr int kMaxTriesWithoutProgress = 5;

// Used only by the waiting caller's thread.
class TransferWatch {
 public:
  TransferWatch(TransferTerms terms, int64_t bytes_total);

  // The deadline to give to gRPC.
  SteadyTime deadline() const { return deadline_; }
  void SetTotal(int64_t bytes) { total_ = bytes; }

  // Call every kPollInterval. Errors: DeadlineExceeded on a timeout.
  absl::Status Look(int64_t bytes_done);

  // Reports completion.
  void Finish();

 private:
  void Tell(int64_t bytes_done) const;

  const TransferTerms terms_;
  const SteadyTime start_;
  const SteadyTime deadline_;
  int64_t total_;
  int64_t moved_bytes_ = -1;
  SteadyTime moved_at_;
};

// The weight of the last transfer in the average, so that a single disturbed transfer does not
// decide.
constexpr double kWeight = 0.25;

}  // namespace

LaneChoice::Size& LaneChoice::SizeOf(int64_t bytes) {
  return sizes_[std::bit_width(static_cast<uint64_t>(bytes))];
}

int LaneChoice::For(int64_t bytes, int64_t min_bytes) {
  if (bytes <= min_bytes) return 1;
  absl::MutexLock lock(&mutex_);
  Size& size = SizeOf(bytes);
  const bool is_trial = ++size.transfers % kTransfersPerTrial == 0;
  const bool knows_one = size.ns_per_byte_of_one > 0;
  const bool knows_several = size.ns_per_byte_of_several > 0;
  bool takes_several = bytes > kLargeBytes;
  if (knows_one != knows_several) takes_several = knows_one;
  if (knows_one && knows_several) {
    const bool are_several_faster = size.ns_per_byte_of_several < size.ns_per_byte_of_one;
    takes_several = are_several_faster != is_trial;
  }
  return takes_several ? kSeveralLanes : 1;
}

void LaneChoice::Tell(int64_t bytes, int lanes, absl::Duration took) {
  const double ns = absl::ToDoubleNanoseconds(took);
  if (bytes <= 0 || !(ns > 0)) return;
  absl::MutexLock lock(&mutex_);
  Size& size = SizeOf(bytes);
  double& known = lanes == 1 ? size.ns_per_byte_of_one : size.ns_per_byte_of_several;
  const double seen = ns / static_cast<double>(bytes);
  known = known > 0 ? known + kWeight * (seen - known) : seen;
}

namespace {

using google::protobuf::io::CodedInputStream;

// The bytes after the first `skipped` ones.
std::vector<grpc::Slice> Rest(std::vector<grpc::Slice> slices, size_t skipped) {
  size_t first = 0;
  for (; first < slices.size() && skipped >= slices[first].size(); ++first) {
    skipped -= slices[first].size();
  }
  slices.erase(slices.begin(), slices.begin() + static_cast<std::ptrdiff_t>(first));
  if (skipped > 0 && !slices.empty()) slices[0] = slices[0].sub(skipped, slices[0].size());
  return slices;
}

// Reads a chunk in the form that every known server writes: one field, whose last part is the data.
std::optional<GetStep> ReadPlainChunk(grpc::ByteBuffer message) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return std::nullopt;
  grpc::ProtoBufferReader stream(&message);
  CodedInputStream input(&stream);
  const auto reads_size_of_rest = [&](int& bytes) {
    return input.ReadVarintSizeAsInt(&bytes) &&
           bytes == static_cast<int>(message.Length()) - input.CurrentPosition();
  };
  int bytes = 0;
  uint64_t offset = 0;
  if (input.ReadTag() != DelimitedTag(v1::GetResponse::kChunkFieldNumber)) return std::nullopt;
  if (!reads_size_of_rest(bytes)) return std::nullopt;
  uint32_t tag = input.ReadTag();
  if (tag == v1::GetChunk::kOffsetFieldNumber << 3 && input.ReadVarint64(&offset)) {
    tag = input.ReadTag();
  }
  if (tag != DelimitedTag(v1::GetChunk::kDataFieldNumber)) return std::nullopt;
  if (!reads_size_of_rest(bytes)) return std::nullopt;
  GetStep step = {
      .is_chunk = true, .offset = static_cast<int64_t>(offset), .data = {}, .bytes = bytes};
  const auto skipped = static_cast<size_t>(input.CurrentPosition());
  // Protobuf's own parser refuses some longer encodings that this one accepts. A chunk of Put has
  // as long a header.
  if (skipped != PutChunkHeader(step.offset, bytes).size()) return std::nullopt;
  step.data = Rest(std::move(slices), skipped);
  return step;
}

template <typename Message>
absl::StatusOr<Message> Parse(grpc::ByteBuffer bytes, absl::string_view name) {
  Message message;
  if (grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok()) return message;
  return absl::DataLossError(
      absl::StrCat(name, ": got bytes that are no such message, want an answer of gemmd"));
}

}  // namespace

std::string PutChunkHeader(int64_t offset, int64_t bytes) {
  v1::PutChunk without_data;
  without_data.set_offset(offset);
  std::string chunk = without_data.SerializeAsString();
  AppendFieldStart(v1::PutChunk::kDataFieldNumber, static_cast<size_t>(bytes), chunk);
  std::string header;
  AppendFieldStart(v1::PutRequest::kChunkFieldNumber, chunk.size() + static_cast<size_t>(bytes),
                   header);
  return header + chunk;
}

grpc::ByteBuffer ToByteBuffer(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<GetStep> ReadGetResponse(const grpc::ByteBuffer& message) {
  if (auto chunk = ReadPlainChunk(message); chunk.has_value()) return *std::move(chunk);
  ASSIGN_OR_RETURN(auto response, Parse<v1::GetResponse>(message, "get"));
  GetStep step;
  if (response.has_chunk()) {
    step.is_chunk = true;
    step.offset = response.chunk().offset();
    step.bytes = static_cast<int64_t>(response.chunk().data().size());
    step.data.emplace_back(response.chunk().data());
  } else if (response.has_tensor()) {
    step.tensor = std::move(*response.mutable_tensor());
  } else {
    return absl::DataLossError("get: got neither a tensor nor a chunk, want one of them");
  }
  return step;
}

absl::StatusOr<v1::PutResponse> ReadPutResponse(const grpc::ByteBuffer& message) {
  return Parse<v1::PutResponse>(message, "put");
}

namespace {

constexpr int kMaxLanes = 16;

// At most as many connections as there are chunks.
int LanesWithin(int64_t bytes, int lanes) {
  const int64_t chunks =
      std::max<int64_t>(1, (bytes + kTransferChunkBytes - 1) / kTransferChunkBytes);
  return static_cast<int>(std::min<int64_t>(lanes, chunks));
}

// The number of connections for a transfer; `asked` comes from the caller, and 0 leaves it to
// `choice`. Errors: InvalidArgument for fewer than 0 or more than 16.
absl::StatusOr<int> LanesFor(int64_t bytes, int asked, LaneChoice& choice) {
  if (asked < 0 || asked > kMaxLanes) {
    return absl::InvalidArgumentError(
        absl::StrCat("connections: got ", asked, ", want 0 to ", kMaxLanes));
  }
  return LanesWithin(bytes, asked > 0 ? asked : choice.For(bytes, kTransferChunkBytes));
}

// Whether a broken transfer may continue over another connection.
bool IsBrokenConnection(const absl::Status& status) { return absl::IsUnavailable(status); }

}  // namespace

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

std::span<const std::byte> UploadSource::From(int64_t offset, int64_t max_bytes) const {
  const size_t at = static_cast<size_t>(offset);
  const auto piece = at < data.size() ? data.subspan(at) : tail.subspan(at - data.size());
  return piece.first(std::min(piece.size(), static_cast<size_t>(max_bytes)));
}

namespace {

// One attempt to send the missing bytes of an upload: streams over several connections take chunks
// in turn, so that chunks arrive nearly in order, as the server's hashing needs.
//
// Threads: the caller's, and those of gRPC, on which the streams react.
class UploadRound {
 public:
  // Borrows all arguments.
  UploadRound(const UploadSource& source, LentBytes& lent, const ClientSession& session,
              SteadyTime deadline);
  ~UploadRound();  // Precondition: no stream is open.

  // Opens a stream whose first message is `first`; the first stream of a round learns which bytes
  // are missing.
  void Open(const std::shared_ptr<grpc::Channel>& channel, const v1::PutRequest& first)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until the first stream knows which bytes are missing; nullopt if it ended before that.
  std::optional<v1::PutState> AwaitState(absl::FunctionRef<absl::Status(int64_t sent)> look)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until all streams have ended; cancels them if `look` fails.
  void AwaitEnd(absl::FunctionRef<absl::Status(int64_t sent)> look) ABSL_LOCKS_EXCLUDED(mutex_);

  // Valid after the end.
  std::optional<v1::TensorInfo> tensor() const ABSL_LOCKS_EXCLUDED(mutex_);  // Set if complete.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);  // The first failure of a stream.

 private:
  class Stream;
  struct Chunk {
    int64_t offset;
    std::span<const std::byte> bytes;
  };

  // Called by streams, under the lock.
  std::optional<Chunk> TakeChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ShouldClose() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void OnAnswer(Stream& stream, absl::StatusOr<v1::PutResponse> answer) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnStreamDone(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Stream*> Streams() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_.has_value() || HasEnded();
  }
  bool HasEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ == 0; }

  const UploadSource& source_;
  LentBytes& lent_;
  const ClientSession& session_;
  const SteadyTime deadline_;

  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<v1::PutState> state_ ABSL_GUARDED_BY(mutex_);
  // The next byte to send: the index of its range, and its position in the range.
  int next_range_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_in_range_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether a stream has ended before the tensor was complete.
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::TensorInfo> tensor_ ABSL_GUARDED_BY(mutex_);
};

constexpr char kPutMethod[] = "/gemmd.v1.Tensors/Put";

// One stream. gRPC delivers OnDone once no operation and no hold remains. The hold here represents
// writes started by another stream's thread; it is removed when reading has ended and no write is
// in progress. Its members are guarded by the lock of its round.
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

  // Sends the next chunk or closes the sending side, if it is this stream's turn.
  void Proceed() ABSL_LOCKS_EXCLUDED(round_.mutex_) {
    bool closes = false;
    {
      absl::MutexLock lock(&round_.mutex_);
      if (is_writing_ || reading_ended_ || is_closed_ || !may_send_) return;
      const auto chunk = round_.TakeChunk();
      closes = !chunk.has_value() && round_.ShouldClose();
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

  // The round's lock is held: clang cannot see that it is the caller's lock.
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
      // Nothing more can be written. Reading then ends on its own.
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
  grpc::ByteBuffer outgoing_;  // The write in progress.

  bool is_writing_ ABSL_GUARDED_BY(round_.mutex_) = true;  // Initially, the first message.
  bool may_send_ ABSL_GUARDED_BY(round_.mutex_) = false;   // The server has answered.
  bool is_closed_ ABSL_GUARDED_BY(round_.mutex_) = false;
  bool reading_ended_ ABSL_GUARDED_BY(round_.mutex_) = false;
  int64_t chunk_bytes_ ABSL_GUARDED_BY(round_.mutex_) = 0;
};

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
      if (mutex_.AwaitWithTimeout(absl::Condition(this, &UploadRound::HasState), kPollInterval)) {
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
      if (mutex_.AwaitWithTimeout(absl::Condition(this, &UploadRound::HasEnded), kPollInterval))
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
  const int64_t max_bytes = state_->max_chunk_bytes() > 0
                                ? std::min(kTransferChunkBytes, state_->max_chunk_bytes())
                                : kTransferChunkBytes;
  for (; next_range_ < state_->missing_size(); ++next_range_, next_in_range_ = 0) {
    const v1::ByteRange& range = state_->missing(next_range_);
    const int64_t left = range.bytes() - next_in_range_;
    if (left <= 0) continue;
    const int64_t offset = range.offset() + next_in_range_;
    const auto bytes = source_.From(offset, std::min(left, max_bytes));
    next_in_range_ += static_cast<int64_t>(bytes.size());
    return Chunk{offset, bytes};
  }
  return std::nullopt;
}

bool UploadRound::ShouldClose() const { return is_broken_ || tensor_.has_value(); }

void UploadRound::OnAnswer(Stream& stream, absl::StatusOr<v1::PutResponse> answer) {
  absl::Status wrong = answer.status();
  bool is_complete = false;
  if (answer.ok()) {
    is_complete = answer->has_tensor();
    absl::MutexLock lock(&mutex_);
    if (answer->has_tensor()) {
      // Only the stream that began the upload receives the factors.
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
  // The other streams need not wait for the same answer.
  if (is_complete) {
    for (Stream* other : Streams()) other->Proceed();
  }
}

void UploadRound::OnStreamDone(const absl::Status& status) {
  bool is_fatal = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!tensor_.has_value()) is_broken_ = true;
    is_fatal = !status.ok() && !IsBrokenConnection(status);
    // The server's error takes precedence over a broken connection.
    if (status_.ok() || (IsBrokenConnection(status_) && is_fatal)) status_ = status;
  }
  // Streams that wait for more chunks now close their side, or end.
  if (is_fatal) Fail(status);
  for (Stream* stream : Streams()) stream->Proceed();
  // The last access to the round.
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
    ASSIGN_OR_RETURN(const auto lanes,
                     LanesFor(total_, plan_.connections, session_.upload_lanes()));
    const SteadyTime start = SteadyTime::Now();
    int tries_without_progress = 0;
    absl::Duration pause = absl::Milliseconds(100);
    while (true) {
      const int64_t before = done_;
      auto tensor = RunRound(lanes);
      if (tensor.ok()) {
        // Only a complete, undisturbed transfer measures the connections.
        const bool is_whole = rounds_ == 1 && done_ == 0;
        if (is_whole) session_.upload_lanes().Tell(total_, lanes, SteadyTime::Now() - start);
        watch_.Finish();
        return tensor;
      }
      if (!IsBrokenConnection(tensor.status())) return Explained(tensor.status());
      if (done_ > before) {
        tries_without_progress = 0;
        pause = absl::Milliseconds(100);
      }
      if (++tries_without_progress == kMaxTriesWithoutProgress) return tensor.status();
      RETURN_IF_ERROR(Pause(pause));
      pause = std::min(2 * pause, absl::Seconds(2));
    }
  }

 private:
  absl::StatusOr<v1::TensorInfo> RunRound(int max_lanes) {
    ASSIGN_OR_RETURN(const auto first_lane, session_.Lanes(1));
    ++rounds_;
    UploadRound round(plan_.source, lent_, session_, watch_.deadline());
    round.Open(first_lane[0], first_);
    const auto state = round.AwaitState([&](int64_t /*sent*/) { return watch_.Look(done_); });
    int64_t missing = 0;
    if (state.has_value()) {
      for (const v1::ByteRange& range : state->missing()) missing += range.bytes();
      done_ = total_ - missing;
      if (!state->upload().empty()) {
        first_.set_join(state->upload());
        JoinWith(round, LanesWithin(missing, max_lanes));
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
    // Without further connections, the upload is only slower.
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
    for (absl::Duration left = pause; left > absl::ZeroDuration(); left -= kPollInterval) {
      absl::SleepFor(std::min(left, kPollInterval));
      RETURN_IF_ERROR(watch_.Look(done_));
    }
    return absl::OkStatus();
  }

  ClientSession& session_;
  const UploadPlan plan_;
  const int64_t total_;
  TransferWatch watch_;
  LentBytes lent_;
  v1::PutRequest first_;  // Begins the upload; later streams join it.
  int rounds_ = 0;
  int64_t done_ = 0;  // Bytes that the server had when the round began.
};

}  // namespace

absl::StatusOr<v1::TensorInfo> RunUpload(ClientSession& session, UploadPlan plan) {
  return UploadCall(session, std::move(plan)).Run();
}

namespace {

constexpr char kGetMethod[] = "/gemmd.v1.Tensors/Get";

// Size of the pieces that a connection requests at a time: a few pieces per connection, so that
// slow connections take fewer.
constexpr int64_t kMinPieceBytes = int64_t{16} << 20;
constexpr int64_t kPiecesOfLane = 8;

// A part of the requested range.
struct Piece {
  int64_t offset = 0;
  int64_t end = 0;
};

// One call of Get. Its reactions run one at a time.
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

  // Requires the lock.
  bool is_done() const { return is_done_; }
  const absl::Status& status() const { return status_; }
  const std::optional<v1::TensorInfo>& tensor() const { return tensor_; }
  Piece rest() const { return piece_; }

 private:
  absl::Status Take() ABSL_LOCKS_EXCLUDED(mutex_) {
    ASSIGN_OR_RETURN(auto step, ReadGetResponse(incoming_));
    if (!step.is_chunk) return TakeDescription(std::move(step.tensor));
    const int64_t first = step.offset - plan_.offset;
    if (first != piece_.offset || step.bytes > piece_.end - piece_.offset) {
      return absl::DataLossError(absl::StrCat("get: got ", step.bytes, " bytes from ", step.offset,
                                              " on, want at most ", piece_.end - piece_.offset,
                                              " from ", plan_.offset + piece_.offset, " on"));
    }
    int64_t at = first;
    for (const grpc::Slice& slice : step.data) {
      const auto bytes = std::as_bytes(std::span(slice.begin(), slice.size()));
      if (absl::Status status = plan_.sink(at, bytes); !status.ok()) return status;
      at += static_cast<int64_t>(bytes.size());
    }
    absl::MutexLock lock(&mutex_);
    piece_.offset = at;
    taken_ += step.bytes;
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
  Piece piece_;  // The rest of the piece. Written by the reactions, under the lock.
  const size_t lane_;
  absl::Mutex& mutex_;  // The download's lock.
  int64_t& taken_;      // Bytes received by all streams; guarded by that lock.

  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;

  // Guarded by the lock.
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
    ASSIGN_OR_RETURN(const auto lanes,
                     LanesFor(plan_.bytes, plan_.connections, session_.download_lanes()));
    const SteadyTime start = SteadyTime::Now();
    ASSIGN_OR_RETURN(const auto channels, session_.Lanes(lanes));
    lanes_ = lanes;
    CutPieces();
    for (size_t lane = 0; lane < channels.size(); ++lane) idle_lanes_.push_back(lane);
    while (!(pieces_.empty() && streams_.empty())) {
      StartPieces(channels);
      AwaitEvent();
      RemoveEndedStreams();
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
    const int64_t bytes = std::max(kMinPieceBytes, plan_.bytes / (lanes_ * kPiecesOfLane));
    // An empty range also has one piece, which fetches the description.
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

  bool HasEndedStream() const {
    for (const auto& stream : streams_) {
      if (stream->is_done()) return true;
    }
    return false;
  }

  void AwaitEvent() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &DownloadCall::HasEndedStream), kPollInterval);
  }

  // Removes ended streams, and requests the rest of broken ones again.
  void RemoveEndedStreams() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < streams_.size();) {
      if (!streams_[i]->is_done()) {
        ++i;
        continue;
      }
      RecordEnd(*streams_[i]);
      streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void RecordEnd(const PieceStream& stream) {
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
    if (taken_ > taken_at_break_) tries_without_progress_ = 0;
    taken_at_break_ = taken_;
    // A server that exits breaks all connections at once.
    const int tries = ++tries_without_progress_ / lanes_;
    if (tries >= kMaxTriesWithoutProgress) {
      status_ = status;
      return;
    }
    pieces_.push_front(rest);
    not_before_ = SteadyTime::Now() + absl::Milliseconds(100 << tries);
  }

  ClientSession& session_;
  const DownloadPlan plan_;
  TransferWatch watch_;

  absl::Mutex mutex_;  // Also guards what the streams report.
  int64_t taken_ = 0;  // Guarded by mutex_.

  // Used by the waiting caller only.
  int lanes_ = 1;
  std::deque<Piece> pieces_;  // Not requested yet.
  std::vector<size_t> idle_lanes_;
  std::vector<std::unique_ptr<PieceStream>> streams_;
  std::optional<v1::TensorInfo> tensor_;
  absl::Status status_;
  int tries_without_progress_ = 0;
  int64_t taken_at_break_ = -1;
  SteadyTime not_before_ = SteadyTime::InfinitePast();
};

}  // namespace

absl::StatusOr<v1::TensorInfo> RunDownload(ClientSession& session, DownloadPlan plan) {
  return DownloadCall(session, std::move(plan)).Run();
}

}  // namespace gemmd
