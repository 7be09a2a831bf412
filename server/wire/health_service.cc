// SPDX-License-Identifier: Apache-2.0
#include "server/wire/health_service.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "health/v1/health.grpc.pb.h"
#include "kernels/or_no_memory.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/mutex.h"
#include "server/wire/grpc_status.h"
#include "server/wire/read_request.h"
#include "server/wire/registry_call.h"
#include "server/wire/unread_answers.h"

namespace gemmd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Errors: as ReadRequest; InvalidArgument where the name is too long.
absl::StatusOr<std::string> NameIn(const grpc::ByteBuffer& request) {
  HealthCheckRequest wire;
  RETURN_IF_ERROR(ReadRequest(TakeRequest(request), wire));
  RETURN_IF_ERROR(CheckNameLength("service", wire.service()));
  // A copy: the message's own may have room for a longer text that came before it.
  return std::string(wire.service());
}

RegistryAnswer AnswerFor(Health::State state) {
  HealthCheckResponse response;
  switch (state) {
    case Health::State::kServing: response.set_status(HealthCheckResponse::SERVING); break;
    case Health::State::kNotServing: response.set_status(HealthCheckResponse::NOT_SERVING); break;
    case Health::State::kUnknown: response.set_status(HealthCheckResponse::SERVICE_UNKNOWN); break;
  }
  return AnswerOf(response);
}

// Tells every change until the client has gone. States that come while one is on its way are not
// told, but for the last.
class WatchReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public Health::Watcher {
 public:
  WatchReactor(const HandlerTiming& timing, Health& health, SendWatch& watch,
               grpc::CallbackServerContext& context)
      : timing_(timing), health_(health), sending_(watch, context) {}

  void Start(const grpc::ByteBuffer& request) {
    absl::StatusOr<std::string> name =
        OrNoMemory("message: no memory, try again later", [&] { return NameIn(request); });
    if (!name.ok()) {
      {
        MutexLock lock(&mutex_);
        is_finished_ = true;
      }
      Finish(ToGrpcStatus(name.status()));
      return;
    }
    name_ = *std::move(name);
    health_.Watch(name_, *this);
  }

  // The reactor is not deleted meanwhile: OnDone waits for the lock of Health.
  void Tell(Health::State state) override ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    wanted_ = state;
    WriteIfNew();
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    {
      MutexLock lock(&mutex_);
      is_writing_ = false;
      is_over_ |= !ok;
      WriteIfNew();
    }
    EndIfOver();
  }

  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
    }
    EndIfOver();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    health_.Unwatch(name_, *this);
    delete this;
  }

 private:
  void WriteIfNew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_writing_ || is_over_ || wanted_ == told_) return;
    told_ = wanted_;
    is_writing_ = true;
    answer_ = AnswerFor(wanted_).bytes;
    sending_.Begin(static_cast<int64_t>(answer_.Length()));
    StartWrite(&answer_);
  }

  // Once the client has gone and nothing is on its way.
  void EndIfOver() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(&mutex_);
      if (!is_over_ || is_writing_ || is_finished_) return;
      is_finished_ = true;
    }
    Finish(grpc::Status::CANCELLED);
  }

  const HandlerTiming timing_;
  Health& health_;
  SendWatch::Call sending_;
  std::string name_;
  grpc::ByteBuffer answer_;
  Mutex mutex_;
  Health::State wanted_ ABSL_GUARDED_BY(mutex_) = Health::State::kUnknown;
  std::optional<Health::State> told_ ABSL_GUARDED_BY(mutex_);  // Or on its way.
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // The client has gone.
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

using Base = grpc::health::v1::Health::Service;
using RawService = grpc::health::v1::Health::WithRawCallbackMethod_Check<
    grpc::health::v1::Health::WithRawCallbackMethod_Watch<Base>>;

class HealthService final : public RawService {
 public:
  HealthService(Health& health, SendWatch& watch, HandlerTimes& times, const Clock& clock)
      : health_(health), watch_(watch), timing_{times, clock, Handler::kHealth} {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    const HandlerTimer timer = timing_.Begin();
    return AnswerRegistryCall(
        timing_, *context, unread_, watch_,
        [&]() -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const std::string name, NameIn(*request));
          const Health::State state = health_.StateOf(name);
          if (state != Health::State::kUnknown) return AnswerFor(state);
          return absl::NotFoundError(GotWant("service", Shown(name), "one that this server has"));
        },
        *response);
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override {
    const HandlerTimer timer = timing_.Begin();
    auto* const reactor = new WatchReactor(timing_, health_, watch_, *context);
    reactor->Start(*request);
    return reactor;
  }

 private:
  Health& health_;
  SendWatch& watch_;
  const HandlerTiming timing_;
  UnreadAnswers unread_{0};  // All are too short to be counted.
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHealthService(Health& health, SendWatch& watch,
                                                 HandlerTimes& times, const Clock& clock) {
  return std::make_unique<HealthService>(health, watch, times, clock);
}

}  // namespace gemmd
