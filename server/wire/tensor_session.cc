// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_session.h"

#include <iterator>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "gemmd/v1/resident.pb.h"
#include "kernels/status_macros.h"
#include "server/scheduling/flow.h"
#include "server/system/mutex.h"
#include "server/wire/grpc_status.h"
#include "server/wire/read_request.h"
#include "server/wire/registry_call.h"

namespace gemmd {
namespace {

// Tells the token once and then keeps the session until the client has gone.
class SessionReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  SessionReactor(const HandlerTiming& timing, SendWatch& watch,
                 grpc::CallbackServerContext& context)
      : timing_(timing), sending_(watch, context) {}

  void Start(TensorStore& store, const Gate& gate, grpc::CallbackServerContext& context,
             const grpc::ByteBuffer& request) {
    if (const absl::Status status = Open(store, gate, context, request); !status.ok()) {
      Finish(ToGrpcStatus(status));
      return;
    }
    sending_.Begin(static_cast<int64_t>(answer_.Length()));
    StartWrite(&answer_);
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    {
      MutexLock lock(&mutex_);
      is_written_ = true;
      is_over_ |= !ok;
    }
    Advance();
  }

  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
    }
    Advance();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    delete this;
  }

 private:
  // Ends the call once the client has gone and the token is on its way no more. Whose write fails
  // is cancelled too, and a call ends once. One that was refused has no write and ended at once.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(&mutex_);
      if (!is_over_ || !is_written_ || is_finished_) return;
      is_finished_ = true;
    }
    Finish(grpc::Status::CANCELLED);
  }

  absl::Status Open(TensorStore& store, const Gate& gate, grpc::CallbackServerContext& context,
                    const grpc::ByteBuffer& request) {
    v1::OpenSessionRequest wire;
    RETURN_IF_ERROR(ReadRequest(TakeRequest(request), wire));
    ASSIGN_OR_RETURN(const Gate::Caller caller, gate.CallerOf(context, Role::kTensors));
    const std::string peer = caller != nullptr ? caller->name : std::string(HostOf(context.peer()));
    SessionOwner owner;
    owner.is_known = caller != nullptr;
    if (caller != nullptr) {
      owner.has_one_session = caller->name != kAnonymous;
      if (caller->use != nullptr) owner.rule = caller->use->rule();
      owner.max_bytes = caller->grant.tensor_bytes;
      owner.max_device_bytes = caller->grant.device_tensor_bytes;
    }
    ASSIGN_OR_RETURN(session_, store.OpenSession(wire.token(), peer, owner));
    v1::OpenSessionResponse response;
    response.set_token(session_.token().ToHex());
    response.set_linger_ns(absl::ToInt64Nanoseconds(store.options().linger));
    response.set_lease_ns(absl::ToInt64Nanoseconds(store.options().lease));
    response.set_max_session_bytes(session_.account().limit());
    answer_ = AnswerOf(response).bytes;
    return absl::OkStatus();
  }

  const HandlerTiming timing_;
  SendWatch::Call sending_;
  TensorStore::SessionUse session_;
  grpc::ByteBuffer answer_;
  Mutex mutex_;
  bool is_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // The client has gone.
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::string SessionTokenOf(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range(kSessionKey);
  // Two tokens cannot both be meant.
  const bool is_one = first != last && std::next(first) == last;
  return is_one ? std::string(first->second.data(), first->second.size()) : "";
}

absl::StatusOr<TensorStore::SessionUse> SessionOf(TensorStore& store, const Gate& gate,
                                                  grpc::CallbackServerContext& context) {
  ASSIGN_OR_RETURN(const Gate::Caller caller, gate.CallerOf(context, Role::kTensors));
  return store.Use(SessionTokenOf(context), caller == nullptr ? "" : caller->name);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartSessionCall(const HandlerTiming& timing,
                                                             TensorStore& store, const Gate& gate,
                                                             SendWatch& watch,
                                                             grpc::CallbackServerContext& context,
                                                             const grpc::ByteBuffer& request) {
  auto* const reactor = new SessionReactor(timing, watch, context);
  reactor->Start(store, gate, context, request);
  return reactor;
}

}  // namespace gemmd
