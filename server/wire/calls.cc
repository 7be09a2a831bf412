// SPDX-License-Identifier: Apache-2.0
#include "server/wire/calls.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/product/admission.h"
#include "server/wire/gate.h"
#include "server/wire/outgoing.h"

namespace gemmd {

namespace {

// The trailing metadata by which gRPC's clients learn how many milliseconds to wait before a retry.
constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";

// When to retry an answer for which there is no room: if readers read, a waiting answer is gone
// long before.
constexpr int64_t kRetryAfterMs = 100;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

void TellRetryAfter(const absl::Status& status, grpc::CallbackServerContext& context) {
  const std::optional<int64_t> retry_after_ms = RetryAfterMs(status);
  if (retry_after_ms) {
    // Clients of gRPC 1.75 never make an attempt that is due at once.
    context.AddTrailingMetadata(kPushbackKey,
                                std::to_string(std::max(*retry_after_ms, int64_t{1})));
  }
}

void SendWatch::Begin(Call& call, int64_t bytes) {
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(limits_.min_bytes_per_second);
  const int64_t now_ns = clock_.NowNs();
  MutexLock lock(&mutex_);
  call.begun_ns_ = call.moved_ns_ = now_ns;
  call.due_ns_ = now_ns + absl::ToInt64Nanoseconds(absl::Seconds(seconds));
  call.taken_bytes_ = -1;
  sending_.insert(&call);
}

void SendWatch::End(Call& call) {
  MutexLock lock(&mutex_);
  sending_.erase(&call);
}

bool SendWatch::IsSilent(Call& call, std::optional<int64_t> taken_bytes, int64_t patience_ns,
                         int64_t now_ns) const {
  const int64_t timeout_ns = absl::ToInt64Nanoseconds(limits_.timeout);
  if (now_ns - call.due_ns_ >= timeout_ns) return true;
  if (!taken_bytes) return patience_ns < timeout_ns && now_ns - call.begun_ns_ >= patience_ns;
  if (call.taken_bytes_ < 0) call.taken_bytes_ = *taken_bytes;
  if (*taken_bytes - call.taken_bytes_ >= kMinProgressBytes) {
    call.taken_bytes_ = *taken_bytes;
    call.moved_ns_ = now_ns;
  }
  return now_ns - call.moved_ns_ >= patience_ns;
}

int SendWatch::EndSilent(absl::Duration timeout) {
  const int64_t patience_ns = absl::ToInt64Nanoseconds(std::min(timeout, limits_.timeout));
  const int64_t now_ns = clock_.NowNs();
  absl::flat_hash_map<std::string, std::optional<int64_t>> taken;
  int ended = 0;
  // The lock is held while gRPC cancels the call, because the call's context must not be destroyed
  // meanwhile. gRPC runs no reaction on this thread.
  MutexLock lock(&mutex_);
  for (auto next = sending_.begin(); next != sending_.end();) {
    const auto position = next++;
    Call& call = **position;
    const auto [peer, is_new] = taken.try_emplace(call.peer());
    if (is_new) peer->second = taken_(peer->first);
    if (!IsSilent(call, peer->second, patience_ns, now_ns)) continue;
    call.Cancel();
    sending_.erase(position);
    ++ended;
  }
  return ended;
}

absl::StatusOr<UnreadAnswers::Room> UnreadAnswers::Hold(int64_t bytes,
                                                        grpc::CallbackServerContext& context) {
  if (bytes <= kUncountedBytes) return Room();
  return HoldFor(gate_.FlowNameOf(context), bytes);
}

absl::StatusOr<UnreadAnswers::Room> UnreadAnswers::HoldFor(std::string_view caller, int64_t bytes) {
  if (bytes <= kUncountedBytes) return Room();
  ASSIGN_OR_RETURN(const Callers::iterator own, Take(caller, bytes));
  return Room(this, [own, bytes](UnreadAnswers* answers) { answers->GiveBack(own, bytes); });
}

absl::StatusOr<UnreadAnswers::Callers::iterator> UnreadAnswers::Take(std::string_view caller,
                                                                     int64_t bytes) {
  const auto refuse = [bytes](int64_t free, std::string_view whose, int64_t held) {
    return WithRetryAfterMs(
        absl::ResourceExhaustedError(
            GotWant("registry", Concat("an answer of ", bytes, " bytes"),
                    Concat("at most ", free, " now: unread answers", whose, " hold ", held))),
        kRetryAfterMs);
  };
  MutexLock lock(&mutex_);
  const int64_t free = max_bytes_ - bytes_;
  if (bytes > free) return refuse(free, "", bytes_);
  auto own = callers_.find(caller);
  if (own != callers_.end()) {
    const int64_t free_of_caller = std::max(max_bytes_ / 2 - own->second, int64_t{0});
    if (bytes > free_of_caller) return refuse(free_of_caller, " of this caller", own->second);
  } else {
    own = callers_.emplace(caller, 0).first;
  }
  own->second += bytes;
  bytes_ += bytes;
  return own;
}

int64_t UnreadAnswers::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

void UnreadAnswers::GiveBack(Callers::iterator caller, int64_t bytes) {
  MutexLock lock(&mutex_);
  bytes_ -= bytes;
  caller->second -= bytes;
  if (caller->second == 0) callers_.erase(caller);
}

RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message) {
  std::string text = message.SerializeAsString();
  const auto size = static_cast<int64_t>(text.size());
  // A short answer is cheaper to copy. gRPC aborts the process if it has no memory for a copy.
  const grpc::Slice slice =
      size <= UnreadAnswers::kUncountedBytes ? grpc::Slice(text) : SliceOf(std::move(text));
  return {grpc::ByteBuffer(&slice, 1), size};
}

int MethodNumber(std::string_view service, std::string_view method) {
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  return pool->FindServiceByName(std::string(service))
      ->FindMethodByName(std::string(method))
      ->index();
}

int64_t MaxRequestBytes(std::string_view service, std::string_view method) {
  return RuleOf(Concat("/", service, "/", method)).max_bytes;
}

void AnsweredCall::Answer(absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer,
                          std::string_view no_memory) {
  const absl::Status status = OrNoMemory(no_memory, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(RegistryAnswer made, answer());
    ASSIGN_OR_RETURN(room_, unread_.Hold(made.own_bytes, context_));
    response_.Swap(&made.bytes);
    sending_.Begin(static_cast<int64_t>(response_.Length()));
    return absl::OkStatus();
  });
  TellRetryAfter(status, context_);
  Finish(ToGrpcStatus(status));
}

}  // namespace gemmd
