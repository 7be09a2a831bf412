// SPDX-License-Identifier: Apache-2.0
#include "server/wire/reflection_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "reflection/v1alpha/reflection.grpc.pb.h"
#include "server/wire/grpc_status.h"
#include "server/wire/read_request.h"
#include "server/wire/reflection_answer.h"
#include "server/wire/registry_call.h"
#include "server/wire/unread_answers.h"

namespace gemmd {
namespace {

using grpc::reflection::v1alpha::ServerReflection;

// What answers hold at most for readers that do not read.
constexpr int64_t kMaxUnreadReflectionBytes = int64_t{8} << 20;

// What all streams of the service have.
struct ReflectionSetting {
  std::vector<std::string> services;
  const ProductRunner& runner;
  const Gate& gate;
  SendWatch& watch;
  HandlerTiming timing;
  UnreadAnswers unread;
};

// One thing is under way at a time: a read, the write of its answer, or the end.
class ReflectionReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ReflectionReactor(ReflectionSetting& setting, grpc::CallbackServerContext& context)
      : setting_(setting), context_(context), sending_(setting.watch, context) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    const HandlerTimer timer = setting_.timing.Begin();
    if (!ok) return Finish(grpc::Status::OK);
    const absl::Status status =
        OrNoMemory("message: no memory for the answer, try again later", [this] { return Take(); });
    request_.Clear();
    if (!status.ok()) {
      TellRetryAfter(status, context_);
      return Finish(ToGrpcStatus(status));
    }
    sending_.Begin(static_cast<int64_t>(answer_.Length()));
    StartWrite(&answer_);
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = setting_.timing.Begin();
    sending_.End();
    answer_.Clear();
    room_ = UnreadAnswers::Room();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }

  void OnDone() override {
    const HandlerTimer timer = setting_.timing.Begin();
    delete this;
  }

 private:
  absl::Status Take() {
    RETURN_IF_ERROR(setting_.runner.CheckQuestion());
    // Who was allowed to begin a stream may have lost that since.
    RETURN_IF_ERROR(setting_.gate.CallerOf(context_, Role::kReflection).status());
    ReflectionQuestion question;
    RETURN_IF_ERROR(ReadRequest(request_, question));
    ASSIGN_OR_RETURN(const ReflectionReply reply,
                     AnswerReflection(std::move(question), setting_.services));
    RegistryAnswer answer = AnswerOf(reply);
    ASSIGN_OR_RETURN(room_, setting_.unread.Hold(answer.own_bytes));
    answer_ = std::move(answer.bytes);
    return absl::OkStatus();
  }

  ReflectionSetting& setting_;
  grpc::CallbackServerContext& context_;
  SendWatch::Call sending_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer answer_;
  UnreadAnswers::Room room_;
};

class ReflectionService final : public ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
                                    ServerReflection::Service> {
 public:
  ReflectionService(const ProductRunner& runner, const Gate& gate, SendWatch& watch,
                    HandlerTimes& times, const Clock& clock)
      : setting_{.services = {},
                 .runner = runner,
                 .gate = gate,
                 .watch = watch,
                 .timing = {times, clock, Handler::kReflection},
                 .unread = UnreadAnswers(kMaxUnreadReflectionBytes)} {}

  // Before the first call.
  void SetServices(const std::vector<std::string>& services) { setting_.services = services; }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override {
    return new ReflectionReactor(setting_, *context);
  }

 private:
  ReflectionSetting setting_;
};

// Tells the service of all that were added to the server, which is known at its start alone.
class ReflectionPlugin final : public grpc::ServerBuilderPlugin {
 public:
  explicit ReflectionPlugin(std::shared_ptr<ReflectionService> service)
      : service_(std::move(service)) {}

  std::string name() override { return "reflection"; }
  void InitServer(grpc::ServerInitializer* server) override { server->RegisterService(service_); }
  void Finish(grpc::ServerInitializer* server) override {
    service_->SetServices(*server->GetServiceList());
  }
  void ChangeArguments(const std::string&, void*) override {}

 private:
  const std::shared_ptr<ReflectionService> service_;
};

class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(std::shared_ptr<ReflectionService> service)
      : service_(std::move(service)) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<ReflectionPlugin>(service_));
  }

 private:
  const std::shared_ptr<ReflectionService> service_;
};

}  // namespace

std::unique_ptr<grpc::ServerBuilderOption> Reflection(const ProductRunner& runner, const Gate& gate,
                                                      SendWatch& watch, HandlerTimes& times,
                                                      const Clock& clock) {
  return std::make_unique<ReflectionOption>(
      std::make_shared<ReflectionService>(runner, gate, watch, times, clock));
}

}  // namespace gemmd
