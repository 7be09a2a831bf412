// SPDX-License-Identifier: Apache-2.0
//
// Requests without operands of all services, each parsed as its service parses it and compared with
// protobuf's own parse of the same bytes. The first byte of an input chooses the request.
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gemmd/v1/admin.pb.h"
#include "gemmd/v1/incidents.pb.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/resident.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "health/v1/health.pb.h"
#include "kernels/matrix/text.h"
#include "kserve/v2/inference.pb.h"
#include "server/system/clock.h"
#include "server/wire/admin_service.h"
#include "server/wire/convert.h"
#include "server/wire/listing.h"
#include "server/wire/reflection_service.h"
#include "server/wire/registry_service.h"
#include "tests/fuzz/question.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;

// The size of an answer that is a message.
template <typename Answer>
std::optional<Answer> AnswerIn(const absl::StatusOr<grpc::ByteBuffer>& bytes) {
  if (!bytes.ok()) {
    DemandBrief(bytes.status());
    return std::nullopt;
  }
  // Long ones take longer to parse than all that is read here.
  if (bytes->Length() > 4096) return std::nullopt;
  Answer answer;
  Demand(answer.ParseFromString(Joined(*bytes)), "an answer is no message");
  return answer;
}

void AskKernels(const v1::ListKernelsRequest& request) {
  static const Listing* const listing = new Listing(ListingOfKernels({}));
  const auto answer = AnswerIn<v1::ListKernelsResponse>(ListKernels(*listing, request));
  if (!answer) return;
  const NamePattern pattern = NamePattern::Parse("pattern", request.name_pattern()).value();
  for (const v1::Kernel& kernel : answer->kernels()) {
    Demand(pattern.Matches(kernel.name()), "a kernel of another name is listed");
  }
}

void AskInstructions(const v1::ListInstructionsRequest& request) {
  static const InstructionAnswers* const answers = new InstructionAnswers();
  const auto answer = AnswerIn<v1::ListInstructionsResponse>(answers->List(request));
  if (!answer) return;
  const NamePattern pattern = NamePattern::Parse("pattern", request.name_pattern()).value();
  for (const v1::Instruction& instruction : answer->instructions()) {
    Demand(pattern.Matches(instruction.name()), "an instruction of another name is listed");
  }
}

// Products that were wrong: of each form that requests have words for, and of one that they have
// not, kept whole, without operands and not at all.
std::vector<IncidentLog::Entry> SomeIncidents() {
  KeptProduct product;
  Problem& problem = product.problem;
  problem.m = problem.n = problem.k = 4;
  problem.a = problem.b = TightLayout("a", ElementType::kE4m3, Order::kRowMajor, 4, 4).value();
  problem.c = problem.d = TightLayout("d", ElementType::kF32, Order::kColumnMajor, 4, 4).value();
  product.a.resize(16);
  product.b.resize(16);
  std::vector<KeptProduct> products = {product};
  problem.beta = 1;
  problem.bias_axis = BiasAxis::kRows;
  problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
  product.c.resize(64);
  product.bias.resize(16);
  product.a_scale.resize(4);
  product.b_scale.resize(4);
  products.push_back(product);
  problem.batch = 2;
  products.push_back(product);
  problem.a = TightSparseLayout("a", ElementType::kF16, 4, 4).value();
  problem.b = TightLayout("b", ElementType::kF16, Order::kRowMajor, 4, 4).value();
  problem.a_scale = problem.b_scale = ScaleKind::kNone;
  product.a_scale.clear();
  product.b_scale.clear();
  products.push_back(product);
  problem.a.batch_stride_bytes = 1000;
  products.push_back(product);
  problem.a_scale = ScaleKind::kTensor;
  product.a_scale.resize(sizeof(float));
  product.has_operands = false;
  products.push_back(product);
  std::vector<IncidentLog::Entry> entries(products.size() + 1);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].incident.id = static_cast<int64_t>(i) + 1;
    if (i < products.size()) entries[i].product = std::make_shared<const KeptProduct>(products[i]);
  }
  return entries;
}

void AskIncident(const v1::GetIncidentProductRequest& request) {
  static const auto* const entries = new std::vector<IncidentLog::Entry>(SomeIncidents());
  const auto product = FindProduct(*entries, request, int64_t{1} << 20);
  if (!product.ok()) return DemandBrief(product.status());
  Demand(product->incident().id() == request.id(), "another incident is told");
  Demand(product->request().a().data().empty() == request.without_operands(),
         "operands are told that are not wanted, or are not");
  Demand(!FindProduct(*entries, request, 8).ok(), "a message is longer than its bound");
}

void AskDevice(const v1::RestartDeviceRequest& request) {
  if (!CheckNameLength("device", request.device()).ok()) return;
  Demand(Shown(request.device()).size() <= kShownBytes + 3, "a refusal is long");
}

TensorStore& EmptyStore() {
  static const auto* const clock = new SteadyClock();
  static auto* const store = new TensorStore({}, *clock);
  return *store;
}

void AskSessions(const v1::ListSessionsRequest& request) {
  const auto sessions = ListSessions(EmptyStore(), request);
  if (!sessions.ok()) return DemandBrief(sessions.status());
  Demand(sessions->sessions().empty() && sessions->left_out() == 0, "a session is listed");
}

void AskDrop(const v1::DropSessionRequest& request) {
  const auto dropped = DropSession(EmptyStore(), request);
  Demand(!dropped.ok(), "a session is dropped");
  DemandBrief(dropped.status());
}

void AskHealth(const grpc::health::v1::HealthCheckRequest& request) {
  const absl::Status status = CheckNameLength("service", request.service());
  Demand(status.ok() == (request.service().size() <= kMaxNameBytes), "a name is too long");
}

void AskReflection(const ReflectionQuestion& question) {
  const absl::StatusOr<ReflectionReply> reply = AnswerReflection(question, {"gemmd.v1.Gemm"});
  if (!reply.ok()) return DemandBrief(reply.status());
  Demand(reply->original_request().SerializeAsString() == question.SerializeAsString(),
         "another question is answered");
  Demand(reply->message_response_case() != ReflectionReply::MESSAGE_RESPONSE_NOT_SET,
         "a question has no answer");
  DemandBrief(absl::UnknownError(reply->error_response().error_message()));
}

// Multiply, MultiplyStream, Explain, ModelInfer, the stream of Put and DescribeFragment have
// targets of their own. RepositoryModelLoad and the RPCs after it in KServe's service are refused
// unread.
std::vector<Question> AllQuestions() {
  std::vector<Question> questions = {
      QuestionOf<v1::ListKernelsRequest, AskKernels>(),
      QuestionOf<v1::ListInstructionsRequest, AskInstructions>(),
      QuestionOf<v1::ListDevicesRequest>(),
      QuestionOf<v1::GetServerInfoRequest>(),
      QuestionOf<v1::GetStatisticsRequest>(),
      QuestionOf<v1::RestartDeviceRequest, AskDevice>(),
      QuestionOf<v1::ListIncidentsRequest>(),
      QuestionOf<v1::GetIncidentProductRequest, AskIncident>(),
      QuestionOf<v1::ListSessionsRequest, AskSessions>(),
      QuestionOf<v1::DropSessionRequest, AskDrop>(),
      QuestionOf<grpc::health::v1::HealthCheckRequest, AskHealth>(),
      QuestionOf<ReflectionQuestion, AskReflection>(),
      QuestionOf<inference::ServerLiveRequest>(),
      QuestionOf<inference::ServerReadyRequest>(),
      QuestionOf<inference::ServerMetadataRequest>(),
  };
  for (const Question& question : TensorQuestions()) questions.push_back(question);
  return questions;
}

const std::vector<Question>& Questions() {
  static const auto* const questions = new std::vector<Question>(AllQuestions());
  return *questions;
}

void RunQuestion(std::string_view input) {
  if (input.empty()) return;
  Choices choices(input);
  const Question& question = Questions()[static_cast<uint8_t>(input.front()) % Questions().size()];
  question.run(input.substr(1), choices);
}

std::vector<const Message*> QuestionMessages() {
  std::vector<const Message*> messages;
  for (const Question& question : Questions()) messages.push_back(question.message);
  return messages;
}

// Existing names, in every field of that type of the message and of its parts.
void RepairNames(Message& message, Choices& choices) {
  constexpr const char* kNames[] = {"weights",
                                    "scaled rows",
                                    "gemm",
                                    "mma.*",
                                    "cpu",
                                    "gemmd.v1.MultiplyRequest",
                                    "gemmd/v1/gemm.proto",
                                    "sm_90"};
  const auto& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* const field : fields) {
    if (field->is_repeated()) continue;
    using Field = google::protobuf::FieldDescriptor;
    if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
      RepairNames(*reflection.MutableMessage(&message, field), choices);
    } else if (field->type() == Field::TYPE_STRING && !choices.OnceIn(3)) {
      const bool is_version = field->name() == "version";
      const char* const name = is_version ? "1" : kNames[choices.Below(std::size(kNames))];
      reflection.SetString(&message, field, name);
    } else if (field->cpp_type() == Field::CPPTYPE_INT64 && choices.OnceIn(2)) {
      reflection.SetInt64(&message, field, static_cast<int64_t>(choices.Below(20)));
    }
  }
}

std::string SeedOf(const Message& message) {
  for (size_t i = 0; i < Questions().size(); ++i) {
    if (Questions()[i].message->GetDescriptor() != message.GetDescriptor()) continue;
    return std::string(1, static_cast<char>(i)) + message.SerializeAsString();
  }
  return {};
}

std::vector<std::string> QuestionSeeds() {
  std::vector<std::string> seeds;
  for (const Question& question : Questions()) {
    seeds.push_back(SeedOf(*question.message));
    // Each text field, handle and hash alone.
    const auto* const descriptor = question.message->GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const auto& field = *descriptor->field(i);
      if (field.cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) continue;
      for (const char* const text : {"weights", "gemm", "gemmd/v1/gemm.proto",
                                     "gemmd.v1.MultiplyRequest", "no such thing"}) {
        const std::unique_ptr<Message> message(question.message->New());
        message->GetReflection()->SetString(message.get(), &field, text);
        seeds.push_back(SeedOf(*message));
      }
    }
  }
  // Text that is not UTF-8.
  seeds.emplace_back("\0\x0a\x01\xff", 4);
  v1::PutBegin begin;
  begin.mutable_spec()->set_type(v1::ELEMENT_TYPE_F16);
  begin.mutable_spec()->set_rows(4);
  begin.mutable_spec()->set_columns(4);
  begin.set_sha256(std::string(32, 'h'));
  seeds.push_back(SeedOf(begin));
  v1::GetRequest get;
  get.mutable_tensor()->set_name("weights");
  for (const int64_t offset : {-1, 0, 16, 512, 513}) {
    get.set_offset(offset);
    get.clear_bytes();
    seeds.push_back(SeedOf(get));
    get.set_bytes(500);
    seeds.push_back(SeedOf(get));
  }
  v1::GetIncidentProductRequest incident;
  for (const int id : {1, 2, 3, 4, 5, 6, 7}) {
    incident.set_id(id);
    for (const bool without : {false, true}) {
      incident.set_without_operands(without);
      seeds.push_back(SeedOf(incident));
    }
  }
  ReflectionQuestion extension;
  extension.mutable_file_containing_extension()->set_containing_type(
      "google.protobuf.FieldOptions");
  extension.mutable_file_containing_extension()->set_extension_number(1);
  seeds.push_back(SeedOf(extension));
  v1::TensorRef sparse;
  sparse.set_name("sparse");
  seeds.push_back(SeedOf(sparse));
  begin.mutable_spec()->set_type(v1::ELEMENT_TYPE_S8);
  for (int i = 0; i < 3; ++i) begin.mutable_spec()->mutable_scale()->add_values(1);
  seeds.push_back(SeedOf(begin));
  v1::CompressRequest compress;
  compress.mutable_tensor()->set_handle(std::string(16, 'h'));
  compress.mutable_mask()->set_name("bits");
  seeds.push_back(SeedOf(compress));
  return seeds;
}

}  // namespace

std::vector<Target> QuestionTargets() {
  return {{.name = "question",
           .run = RunQuestion,
           .seeds = QuestionSeeds,
           .repair = RepairNames,
           .messages = QuestionMessages}};
}

}  // namespace gemmd::fuzz
