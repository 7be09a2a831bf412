// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_service.h"

#include <utility>
#include <vector>

#include "gemmd/v1/resident.grpc.pb.h"
#include "kernels/status_macros.h"
#include "server/store/compression.h"
#include "server/wire/name_pattern.h"
#include "server/wire/read_request.h"
#include "server/wire/refused_call.h"
#include "server/wire/registry_call.h"
#include "server/wire/tensor_compress.h"
#include "server/wire/tensor_convert.h"
#include "server/wire/tensor_get.h"
#include "server/wire/tensor_put.h"
#include "server/wire/tensor_session.h"

namespace gemmd {
namespace {

// What listings and descriptions hold at most for readers that do not read.
constexpr int64_t kMaxUnreadBytes = int64_t{32} << 20;

template <typename Base>
using RawStreams = v1::Tensors::WithRawCallbackMethod_OpenSession<
    v1::Tensors::WithRawCallbackMethod_Put<v1::Tensors::WithRawCallbackMethod_Get<Base>>>;
template <typename Base>
using RawAnswers =
    v1::Tensors::WithRawCallbackMethod_List<v1::Tensors::WithRawCallbackMethod_Describe<
        v1::Tensors::WithRawCallbackMethod_Delete<v1::Tensors::WithRawCallbackMethod_KeepAlive<
            v1::Tensors::WithRawCallbackMethod_Compress<Base>>>>>;

// Whether a server that is short of memory answers. Deleting gives memory back, and what is kept
// must not be lost meanwhile.
bool IsTensorCallWithoutMemory(Handler handler) {
  return handler == Handler::kDelete || handler == Handler::kKeepAlive;
}

class TensorService final : public RawStreams<RawAnswers<v1::Tensors::Service>> {
 public:
  TensorService(TensorStore& store, const ProductRunner& runner, const Gate& gate, SendWatch& watch,
                HandlerTimes& times, const Clock& clock)
      : store_(store),
        runner_(runner),
        gate_(gate),
        watch_(watch),
        times_(times),
        clock_(clock),
        unread_(kMaxUnreadBytes),
        compressor_(store) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* OpenSession(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override {
    using Reactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;
    const HandlerTiming timing{times_, clock_, Handler::kOpenSession};
    const HandlerTimer timer = timing.Begin();
    const absl::Status room = runner_.CheckQuestion();
    if (!room.ok()) return RefuseCall<Reactor>(room);
    return StartSessionCall(timing, store_, gate_, watch_, *context, *request);
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Put(
      grpc::CallbackServerContext* context) override {
    using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
    const absl::Status room = runner_.CheckQuestion();
    if (!room.ok()) return RefuseCall<Reactor>(room);
    return StartPutCall(store_, gate_, unread_, watch_, times_, *context, clock_);
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Get(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request) override {
    using Reactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;
    const HandlerTiming timing{times_, clock_, Handler::kGet};
    const HandlerTimer timer = timing.Begin();
    const absl::Status room = runner_.CheckQuestion();
    if (!room.ok()) return RefuseCall<Reactor>(room);
    return StartGetCall(timing, store_, gate_, unread_, watch_, *context, *request);
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override {
    return Answer<v1::ListTensorsRequest>(
        Handler::kList, *context, *request, *response,
        [this](const TensorStore::SessionUse& session, const v1::ListTensorsRequest& wire) {
          return ListTensors(session, wire);
        });
  }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return Answer<v1::TensorRef>(
        Handler::kDescribe, *context, *request, *response,
        [this](const TensorStore::SessionUse& session,
               const v1::TensorRef& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire));
          ASSIGN_OR_RETURN(const TensorState state, store_.Describe(session, name));
          return AnswerOf(ToWire(state));
        });
  }

  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override {
    return Answer<v1::TensorRef>(
        Handler::kDelete, *context, *request, *response,
        [this](const TensorStore::SessionUse& session,
               const v1::TensorRef& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire));
          RETURN_IF_ERROR(store_.Delete(session, name));
          return AnswerOf(v1::DeleteTensorResponse());
        });
  }

  grpc::ServerUnaryReactor* KeepAlive(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override {
    return Answer<v1::KeepAliveRequest>(
        Handler::kKeepAlive, *context, *request, *response,
        [this](const TensorStore::SessionUse& session,
               const v1::KeepAliveRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire.tensor()));
          ASSIGN_OR_RETURN(
              const TensorState state,
              store_.KeepAlive(
                  session, name,
                  wire.has_lease_ns() ? std::optional<int64_t>(wire.lease_ns()) : std::nullopt,
                  wire.has_pinned() ? std::optional<bool>(wire.pinned()) : std::nullopt));
          return AnswerOf(ToWire(state));
        });
  }

  grpc::ServerUnaryReactor* Compress(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    const HandlerTiming timing{times_, clock_, Handler::kCompress};
    const HandlerTimer timer = timing.Begin();
    const absl::Status room = runner_.CheckQuestion();
    if (!room.ok()) return RefuseCall<grpc::ServerUnaryReactor>(room);
    return StartCompressCall(timing, store_, gate_, compressor_, unread_, watch_, *context,
                             *request, *response);
  }

 private:
  // Answers a call of a session with what `make` gives for its parsed request.
  template <typename Request, typename Make>
  grpc::ServerUnaryReactor* Answer(Handler handler, grpc::CallbackServerContext& context,
                                   const grpc::ByteBuffer& request, grpc::ByteBuffer& response,
                                   Make make) {
    const HandlerTiming timing{times_, clock_, handler};
    const HandlerTimer timer = timing.Begin();
    const grpc::ByteBuffer bytes = TakeRequest(request);
    const auto answer = [&]() -> absl::StatusOr<RegistryAnswer> {
      if (!IsTensorCallWithoutMemory(handler)) RETURN_IF_ERROR(runner_.CheckQuestion());
      Request wire;
      RETURN_IF_ERROR(ReadRequest(bytes, wire));
      ASSIGN_OR_RETURN(const TensorStore::SessionUse session, SessionOf(store_, gate_, context));
      return make(session, wire);
    };
    return AnswerRegistryCall(timing, context, unread_, watch_, answer, response);
  }

  absl::StatusOr<RegistryAnswer> ListTensors(const TensorStore::SessionUse& session,
                                             const v1::ListTensorsRequest& wire) {
    ASSIGN_OR_RETURN(const NamePattern pattern, NamePattern::Parse("pattern", wire.pattern()));
    v1::ListTensorsResponse response;
    for (const TensorState& state : store_.List(session)) {
      if (!wire.pattern().empty() && !pattern.Matches(state.tensor->name)) continue;
      *response.add_tensors() = ToWire(state, Scales::kLeftOut);
    }
    const Account& account = session.account();
    response.set_session_bytes(account.used());
    response.set_max_session_bytes(account.limit());
    response.set_free_bytes(store_.FreeBytes(session));
    return AnswerOf(response);
  }

  TensorStore& store_;
  const ProductRunner& runner_;
  const Gate& gate_;
  SendWatch& watch_;
  HandlerTimes& times_;
  const Clock& clock_;
  UnreadAnswers unread_;
  Compressor compressor_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTensorService(TensorStore& store, const ProductRunner& runner,
                                                 const Gate& gate, SendWatch& watch,
                                                 HandlerTimes& times, const Clock& clock) {
  return std::make_unique<TensorService>(store, runner, gate, watch, times, clock);
}

}  // namespace gemmd
