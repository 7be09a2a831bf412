// SPDX-License-Identifier: Apache-2.0
#include "server/wire/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "reflection/v1/reflection.grpc.pb.h"
#include "reflection/v1alpha/reflection.grpc.pb.h"
#include "server/wire/calls.h"
#include "server/wire/incoming.h"

namespace gemmd {

namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;

absl::Status UnknownSymbol(std::string_view field, std::string_view name) {
  return absl::NotFoundError(GotWant(field, Shown(name), "one that this server has"));
}

// Adds the file and then the files that it imports, each once.
absl::Status AddFiles(const google::protobuf::FileDescriptor* file, ReflectionReply& response) {
  absl::flat_hash_set<const google::protobuf::FileDescriptor*> seen = {file};
  std::vector<const google::protobuf::FileDescriptor*> files = {file};
  for (size_t i = 0; i < files.size(); ++i) {
    google::protobuf::FileDescriptorProto proto;
    files[i]->CopyTo(&proto);
    response.mutable_file_descriptor_response()->add_file_descriptor_proto(
        proto.SerializeAsString());
    for (int j = 0; j < files[i]->dependency_count(); ++j) {
      const google::protobuf::FileDescriptor* const import = files[i]->dependency(j);
      if (seen.insert(import).second) files.push_back(import);
    }
  }
  return absl::OkStatus();
}

absl::Status AddExtensionNumbers(const std::string& name, ReflectionReply& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* const type = pool.FindMessageTypeByName(name);
  if (type == nullptr) return UnknownSymbol("all_extension_numbers_of_type", name);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  auto& answer = *response.mutable_all_extension_numbers_response();
  answer.set_base_type_name(name);
  for (const FieldDescriptor* const field : extensions) {
    answer.add_extension_number(field->number());
  }
  return absl::OkStatus();
}

absl::Status CheckSymbols(const ReflectionQuestion& request) {
  RETURN_IF_ERROR(CheckNameLength("host", request.host()));
  RETURN_IF_ERROR(CheckNameLength("file_by_filename", request.file_by_filename()));
  RETURN_IF_ERROR(CheckNameLength("file_containing_symbol", request.file_containing_symbol()));
  RETURN_IF_ERROR(CheckNameLength("file_containing_extension.containing_type",
                                  request.file_containing_extension().containing_type()));
  RETURN_IF_ERROR(
      CheckNameLength("all_extension_numbers_of_type", request.all_extension_numbers_of_type()));
  return CheckNameLength("list_services", request.list_services());
}

// Adds the description of the requested symbol. NotFound and InvalidArgument become a part of the
// answer.
absl::Status DescribeSymbol(const ReflectionQuestion& request,
                            const std::vector<std::string>& services, ReflectionReply& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case ReflectionQuestion::kFileByFilename: {
      const google::protobuf::FileDescriptor* const file =
          pool.FindFileByName(request.file_by_filename());
      if (file == nullptr) return UnknownSymbol("file_by_filename", request.file_by_filename());
      return AddFiles(file, response);
    }
    case ReflectionQuestion::kFileContainingSymbol: {
      const std::string& symbol = request.file_containing_symbol();
      const google::protobuf::FileDescriptor* const file = pool.FindFileContainingSymbol(symbol);
      if (file == nullptr) return UnknownSymbol("file_containing_symbol", symbol);
      return AddFiles(file, response);
    }
    case ReflectionQuestion::kFileContainingExtension: {
      const auto& extension = request.file_containing_extension();
      const Descriptor* const type = pool.FindMessageTypeByName(extension.containing_type());
      const FieldDescriptor* const field =
          type == nullptr ? nullptr
                          : pool.FindExtensionByNumber(type, extension.extension_number());
      if (field == nullptr) {
        return UnknownSymbol("file_containing_extension", extension.containing_type());
      }
      return AddFiles(field->file(), response);
    }
    case ReflectionQuestion::kAllExtensionNumbersOfType:
      return AddExtensionNumbers(request.all_extension_numbers_of_type(), response);
    case ReflectionQuestion::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      return absl::OkStatus();
    default: return Invalid("message_request", "none", "one of its kinds");
  }
}

}  // namespace

absl::StatusOr<ReflectionReply> AnswerReflection(ReflectionQuestion question,
                                                 const std::vector<std::string>& services) {
  RETURN_IF_ERROR(CheckSymbols(question));
  ReflectionReply reply;
  reply.set_valid_host(question.host());
  if (const absl::Status status = DescribeSymbol(question, services, reply); !status.ok()) {
    reply.mutable_error_response()->set_error_code(status.raw_code());
    reply.mutable_error_response()->set_error_message(std::string(status.message()));
  }
  *reply.mutable_original_request() = std::move(question);
  return reply;
}

namespace {

// The maximum bytes of unread answers.
constexpr int64_t kMaxUnreadReflectionBytes = int64_t{8} << 20;

// State that all streams of the service share.
struct ReflectionSetting : ServiceParts {
  explicit ReflectionSetting(const ServiceParts& parts)
      : ServiceParts(parts),
        timing{times, clock, HandlerOf("ServerReflectionInfo")},
        unread(kMaxUnreadReflectionBytes, gate) {}

  std::vector<std::string> services;  // Set before the first call.
  HandlerTiming timing;
  UnreadAnswers unread;
};

// Does one thing at a time: a read, the write of its answer, or the end.
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
    room_ = nullptr;
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
    // A caller that was allowed to begin the stream may have lost that right since.
    RETURN_IF_ERROR(setting_.gate.CallerOf(context_, Role::kReflection).status());
    ReflectionQuestion question;
    RETURN_IF_ERROR(ReadRequest(request_, question, RuleOf("/grpc.reflection.").max_bytes));
    ASSIGN_OR_RETURN(const ReflectionReply reply,
                     AnswerReflection(std::move(question), setting_.services));
    RegistryAnswer answer = AnswerOf(reply);
    ASSIGN_OR_RETURN(room_, setting_.unread.Hold(answer.own_bytes, context_));
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

template <typename Version>
class ReflectionService final : public Version::template WithRawCallbackMethod_ServerReflectionInfo<
                                    typename Version::Service> {
 public:
  explicit ReflectionService(std::shared_ptr<ReflectionSetting> setting)
      : setting_(std::move(setting)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override {
    return new ReflectionReactor(*setting_, *context);
  }

 private:
  const std::shared_ptr<ReflectionSetting> setting_;
};

// Adds the service, and gives it the list of all services of the server, which is known only when
// the server starts.
class ReflectionPlugin final : public grpc::ServerBuilderPlugin {
 public:
  explicit ReflectionPlugin(std::shared_ptr<ReflectionSetting> setting)
      : setting_(std::move(setting)) {}

  std::string name() override { return "reflection"; }
  void InitServer(grpc::ServerInitializer* server) override {
    using grpc::reflection::v1::ServerReflection;
    using Older = grpc::reflection::v1alpha::ServerReflection;
    server->RegisterService(std::make_shared<ReflectionService<ServerReflection>>(setting_));
    server->RegisterService(std::make_shared<ReflectionService<Older>>(setting_));
  }
  void Finish(grpc::ServerInitializer* server) override {
    setting_->services = *server->GetServiceList();
  }
  void ChangeArguments(const std::string&, void*) override {}

 private:
  const std::shared_ptr<ReflectionSetting> setting_;
};

class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(std::shared_ptr<ReflectionSetting> setting)
      : setting_(std::move(setting)) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<ReflectionPlugin>(setting_));
  }

 private:
  const std::shared_ptr<ReflectionSetting> setting_;
};

}  // namespace

std::unique_ptr<grpc::ServerBuilderOption> Reflection(const ServiceParts& parts) {
  return std::make_unique<ReflectionOption>(std::make_shared<ReflectionSetting>(parts));
}

}  // namespace gemmd
