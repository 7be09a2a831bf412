// SPDX-License-Identifier: Apache-2.0
//
// Requests of products, alone and several in one message: against protobuf's own parse of the same
// bytes, and against the client's sizes.
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/operand_size.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "kernels/catalog.h"
#include "kernels/select.h"
#include "server/wire/convert.h"
#include "server/wire/convert_operand.h"
#include "server/wire/convert_registry.h"
#include "server/wire/incoming.h"
#include "server/wire/joint_request.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;

bool IsAboutCountsOfFields(const absl::Status& status) {
  return status.message().find("fields, want") != std::string_view::npos;
}

ReceiveQuota& Quota() {
  static ReceiveQuota* const quota = new ReceiveQuota(int64_t{1} << 30);
  return *quota;
}

// The rates of a device, made up: of a GPU and of the machine's processor alike.
DeviceProfile ProfileOf(DeviceKind kind) {
  DeviceProfile profile = {.target = {.kind = kind,
                                      .has_avx512_vnni = true,
                                      .has_avx512_core = true,
                                      .chip = mma::Chip::kSm90,
                                      .multiprocessors = 132},
                           .rates = {}};
  profile.memory_bytes_per_second = 4e12;
  profile.copied_bytes_per_second = 5e10;
  return profile;
}

void CheckChoice(DeviceKind kind, const Problem& problem, const Constraints& constraints,
                 bool is_thorough) {
  static const std::array<DeviceProfile, 3>* const profiles = new std::array<DeviceProfile, 3>(
      {ProfileOf(DeviceKind::kCpu), ProfileOf(DeviceKind::kSim), ProfileOf(DeviceKind::kCuda)});
  const DeviceProfile& profile = (*profiles)[static_cast<size_t>(kind)];
  const absl::Span<const Kernel> catalog = Catalog(kind);
  const Kernel* const best = FindBest(catalog, problem, constraints, profile);
  if (best != nullptr) {
    Demand(best->supports(problem).ok(), "a kernel that does not support the problem was chosen");
    Demand(PredictedNs(*best, problem, profile) >= 0, "a time before now was predicted");
    const absl::StatusOr<int64_t> workspace = best->workspace_bytes(problem);
    Demand(!workspace.ok() || *workspace >= 0, "the workspace has less than no bytes");
  }
  Demand(PredictedCopyNs(problem, profile) >= 0, "a copy before now was predicted");
  if (!is_thorough) return;
  const Selection selection = Select(catalog, problem, constraints, profile);
  Demand(selection.candidates.size() + selection.refusals.size() == catalog.size(),
         "a kernel is neither a candidate nor refused");
  Demand((best == nullptr) == selection.candidates.empty(), "Select and FindBest disagree");
  Demand(best == nullptr || selection.candidates.front().kernel == best,
         "Select and FindBest choose differently");
  v1::ExplainResponse explanation;
  (void)FillExplanation(problem, selection, explanation);
  Demand(explanation.operations() >= 0 && explanation.bytes_read() >= 0 &&
             explanation.bytes_written() >= 0 && explanation.workspace_bytes() >= 0,
         "an explanation has a number below 0");
}

OperandShape ShapeOf(const v1::Operand& operand, v1::ElementType type, int64_t rows,
                     int64_t columns, int64_t batch) {
  if (operand.transpose()) std::swap(rows, columns);
  OperandShape shape = {.type = type,
                        .order = operand.order(),
                        .rows = rows,
                        .columns = columns,
                        .leading_dimension = operand.leading_dimension(),
                        .batch_stride = std::nullopt,
                        .batch = batch,
                        .sparsity = operand.sparsity()};
  if (operand.has_batch_stride()) shape.batch_stride = operand.batch_stride();
  return shape;
}

// Client and server reckon the bytes of an operand, each by itself.
void CheckSize(const v1::Operand& operand, const MatrixLayout& layout, int64_t batch) {
  const auto ours = BytesOf("x", layout, batch);
  Demand(ours.ok(), "a matrix of a valid problem has no size");
  const auto theirs =
      SizeOperand("x", ShapeOf(operand, ToWire(layout.type), layout.rows, layout.columns, batch));
  Demand(theirs.ok(), "the client refuses a matrix that the server takes");
  Demand(theirs->least == ours->least && theirs->full == ours->full,
         "client and server reckon different bytes");
}

void CheckSource(const Source& source, int64_t want) {
  int64_t bytes = 0;
  for (const Piece& piece : source.pieces) {
    Demand(!piece.empty(), "a piece is empty");
    bytes += static_cast<int64_t>(piece.size());
  }
  Demand(bytes == source.bytes && bytes == want, "a source has another number of bytes");
}

void CheckParsed(const v1::MultiplyRequest& request, const ParsedRequest& parsed, bool has_bytes) {
  const Problem& problem = parsed.job.problem;
  Demand(Validate(problem).ok(), "what was parsed is not valid");
  Demand(Operations(problem) >= 0, "a product has less than no operations");
  Demand(BytesRead(problem) >= 0 && BytesWritten(problem) >= 0,
         "a product reads less than nothing");
  CheckSize(request.a(), problem.a, problem.batch);
  CheckSize(request.b(), problem.b, problem.batch);
  if (problem.has_c()) CheckSize(request.c(), problem.c, problem.batch);
  if (!has_bytes) return;
  const auto check = [&](const v1::Operand& operand, const MatrixLayout& layout,
                         const Source& source, bool is_read) {
    if (operand.has_tensor()) return;
    CheckSource(source, is_read ? BytesOf("x", layout, problem.batch)->least : 0);
  };
  check(request.a(), problem.a, parsed.job.a, problem.has_product());
  check(request.b(), problem.b, parsed.job.b, problem.has_product());
  if (problem.has_c()) check(request.c(), problem.c, parsed.job.c, true);
}

// Puts what is held back into the message, as protobuf would have parsed it.
template <typename Part>
void Restore(Part& part, const HeldFields& held) {
  HeldField* const field = held.Find(part, Part::kDataFieldNumber);
  if (field == nullptr) return;
  Demand(part.data().empty(), "a field is held and in the message");
  std::string bytes;
  for (const Piece& piece : field->pieces()) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  Demand(static_cast<int64_t>(bytes.size()) == field->bytes(), "a held field has another length");
  part.set_data(bytes);
}

void RestoreAll(v1::MultiplyRequest& request, const HeldFields& held) {
  if (request.has_a()) Restore(*request.mutable_a(), held);
  if (request.has_b()) Restore(*request.mutable_b(), held);
  if (request.has_c()) Restore(*request.mutable_c(), held);
  if (request.has_bias()) Restore(*request.mutable_bias(), held);
}

// What becomes of the bytes of one request, against what protobuf makes of them.
void CheckIncoming(Incoming incoming, std::string_view bytes, Choices& choices) {
  v1::MultiplyRequest want;
  const bool is_message = want.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  const std::string id = incoming.ShortText(v1::MultiplyRequest::kRequestIdFieldNumber, size_t{64});
  Demand(id.size() <= 64, "a short text is long");
  v1::MultiplyRequest got;
  HeldFields held;
  const absl::StatusOr<int64_t> most_bytes = incoming.Examine(got);
  const absl::Status status =
      most_bytes.ok() ? incoming.Parse(got, Quota(), held) : most_bytes.status();
  if (IsAboutCountsOfFields(status)) return;
  Demand(status.ok() == is_message, "protobuf takes another message");
  if (!is_message) return;
  Demand(id == want.request_id().substr(0, 64), "a short text is another one");
  Demand(*most_bytes >= static_cast<int64_t>(bytes.size()), "a message takes less than its bytes");

  const auto described = ParseMultiply(got, nullptr);
  if (described.ok()) {
    CheckParsed(got, *described, false);
    // To ask hundreds of kernels takes longer than everything else here.
    if (choices.OnceIn(8)) {
      const auto kind = static_cast<DeviceKind>(choices.Below(3));
      CheckChoice(kind, described->job.problem, described->constraints, choices.OnceIn(8));
    }
  }
  const auto parsed = ParseMultiply(got, &held);
  if (parsed.ok()) {
    // NaN is not even itself.
    const bool has_nan = std::isnan(got.alpha()) || std::isnan(got.beta());
    Demand(described.ok() && (has_nan || described->job.problem == parsed->job.problem),
           "a request and its description are different problems");
    CheckParsed(got, *parsed, true);
  }
  want.DiscardUnknownFields();
  RestoreAll(got, held);
  Demand(got.SerializeAsString() == want.SerializeAsString(), "protobuf parses another message");
}

// Data that is so long that it stays where it arrived.
void Stretch(v1::MultiplyRequest& request, Choices& choices) {
  const auto lengthen = [&](std::string& data) {
    if (!choices.OnceIn(3)) data.resize(kHeldFromBytes - 1 + choices.Below(3) * 20000, 's');
  };
  if (request.a().has_data()) lengthen(*request.mutable_a()->mutable_data());
  if (request.b().has_data()) lengthen(*request.mutable_b()->mutable_data());
  if (request.has_bias()) lengthen(*request.mutable_bias()->mutable_data());
}

void RunMultiply(std::string_view input) {
  Choices choices(input);
  std::string bytes(input);
  v1::MultiplyRequest request;
  if (choices.OnceIn(8) && request.ParseFromString(bytes)) {
    Stretch(request, choices);
    bytes = request.SerializeAsString();
  }
  grpc::ByteBuffer buffer = Cut(bytes, choices);
  CheckIncoming(Incoming(buffer), bytes, choices);
}

void RunJoint(std::string_view input) {
  Choices choices(input);
  v1::MultiplyStreamRequest want;
  const bool is_message = want.ParseFromArray(input.data(), static_cast<int>(input.size()));
  grpc::ByteBuffer buffer = Cut(input, choices);
  JointRequest joint(buffer);
  const absl::Status status = joint.Cut();
  if (!status.ok()) {
    const bool is_bounded = static_cast<size_t>(want.requests_size()) > kMostJointRequests ||
                            IsAboutCountsOfFields(status);
    Demand(!is_message || is_bounded, "a message is refused that protobuf takes");
    return;
  }
  Demand(!is_message || joint.size() == static_cast<size_t>(want.requests_size()),
         "protobuf finds another number of products");
  bool are_messages = true;
  while (joint.size() > 0) {
    Incoming product = joint.Take();
    const auto bytes = product.wire_bytes();
    v1::MultiplyRequest got;
    HeldFields held;
    absl::Status parsed = product.Examine(got).status();
    if (parsed.ok()) parsed = product.Parse(got, Quota(), held);
    if (IsAboutCountsOfFields(parsed)) return;
    are_messages = are_messages && parsed.ok();
    if (!is_message) continue;
    const auto number = static_cast<size_t>(want.requests_size()) - joint.size() - 1;
    v1::MultiplyRequest& one = *want.mutable_requests(static_cast<int>(number));
    one.DiscardUnknownFields();
    RestoreAll(got, held);
    Demand(parsed.ok() && got.SerializeAsString() == one.SerializeAsString(),
           "a product of several is another one");
    Demand(bytes <= static_cast<int64_t>(input.size()), "a product has more than all bytes");
  }
  Demand(is_message == are_messages, "products are messages, and all of them are none");
}

// An operand with as many bytes as its layout takes.
void FillOperand(v1::Operand& operand, int64_t rows, int64_t columns, int64_t batch) {
  if (operand.has_tensor()) operand.clear_tensor();
  if (operand.leading_dimension() != 0 || operand.batch_stride() != 0) {
    operand.set_leading_dimension(operand.leading_dimension() & 31);
    if (operand.has_batch_stride()) operand.set_batch_stride(operand.batch_stride() & 255);
  }
  const auto bytes = SizeOperand("x", ShapeOf(operand, operand.type(), rows, columns, batch));
  if (bytes.ok() && bytes->full < 4096) {
    operand.set_data(std::string(static_cast<size_t>(bytes->full), '\0'));
  }
}

void RepairRequest(Message& message, Choices& choices) {
  auto& request = static_cast<v1::MultiplyRequest&>(message);
  if (choices.OnceIn(4)) return;  // Large sizes, which are described and not sent.
  request.set_m(request.m() & 15);
  request.set_n(request.n() & 15);
  request.set_k(request.k() & 31);
  if (request.has_batch()) request.set_batch(request.batch() & 3);
  const auto usual = static_cast<v1::ElementType>(1 + choices.Below(15));
  if (request.a().type() < 1 || request.a().type() > 15) request.mutable_a()->set_type(usual);
  if (!choices.OnceIn(4)) request.mutable_b()->set_type(request.a().type());
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  FillOperand(*request.mutable_a(), request.m(), request.k(), batch);
  FillOperand(*request.mutable_b(), request.k(), request.n(), batch);
  if (request.beta() == 0) {
    request.clear_c();
  } else {
    FillOperand(*request.mutable_c(), request.m(), request.n(), batch);
  }
  if (!choices.OnceIn(3)) {
    request.clear_accumulation_type();
    request.clear_kernel();
    request.mutable_d()->clear_leading_dimension();
    request.mutable_d()->clear_batch_stride();
    request.mutable_d()->clear_type();
  }
  if (request.has_bias()) {
    const int64_t count = request.bias().axis() == v1::BIAS_AXIS_ROWS ? request.m() : request.n();
    request.mutable_bias()->set_type(v1::ELEMENT_TYPE_F32);
    request.mutable_bias()->set_data(std::string(static_cast<size_t>(4 * count), '\0'));
  }
}

void RepairJoint(Message& message, Choices& choices) {
  for (v1::MultiplyRequest& one :
       *static_cast<v1::MultiplyStreamRequest&>(message).mutable_requests()) {
    RepairRequest(one, choices);
  }
}

// One product of each pair of types, with C, bias and scales by turns.
std::vector<v1::MultiplyRequest> SeedRequests() {
  std::vector<v1::MultiplyRequest> requests;
  for (int type = 1; type <= 15; ++type) {
    Choices choices(static_cast<uint64_t>(type));
    v1::MultiplyRequest request;
    request.set_request_id("request");
    request.set_m(3);
    request.set_n(4);
    request.set_k(8);
    request.mutable_a()->set_type(static_cast<v1::ElementType>(type));
    request.mutable_b()->set_type(static_cast<v1::ElementType>(type));
    if (type % 3 == 0) request.set_beta(1);
    if (type % 4 == 0) request.mutable_bias()->set_axis(v1::BIAS_AXIS_COLUMNS);
    if (type % 5 == 0) request.set_batch(2);
    if (type % 2 == 0) request.mutable_b()->set_order(v1::ORDER_COLUMN_MAJOR);
    if (type == 5) request.mutable_a()->set_sparsity(v1::SPARSITY_2_4);
    if (type == 11) request.mutable_a()->mutable_scale()->add_values(0.5f);
    while (request.a().data().empty()) RepairRequest(request, choices);
    requests.push_back(request);
    // The same without bytes, as large as sizes can be.
    request.mutable_a()->clear_data();
    request.mutable_b()->clear_data();
    request.set_m(int64_t{1} << (type % 4 * 10 + 20));
    request.set_n(int64_t{1} << (50 - type % 4 * 10));
    request.mutable_a()->set_leading_dimension(type % 2 == 0 ? int64_t{1} << 50 : 0);
    requests.push_back(request);
  }
  requests.back().mutable_a()->mutable_tensor()->mutable_tensor()->set_name("weights");
  requests.back().mutable_d()->mutable_new_tensor()->set_name("result");
  return requests;
}

std::vector<std::string> MultiplySeeds() {
  std::vector<std::string> seeds;
  for (const v1::MultiplyRequest& request : SeedRequests()) {
    seeds.push_back(request.SerializeAsString());
  }
  return seeds;
}

std::vector<std::string> JointSeeds() {
  v1::MultiplyStreamRequest all;
  std::vector<std::string> seeds = {""};
  for (const v1::MultiplyRequest& request : SeedRequests()) {
    *all.add_requests() = request;
    if (all.requests_size() % 5 == 1) seeds.push_back(all.SerializeAsString());
    if (all.requests_size() > 6) all.Clear();
  }
  return seeds;
}

}  // namespace

std::vector<Target> ProductTargets() {
  return {{"multiply", RunMultiply, MultiplySeeds, DefaultOf<v1::MultiplyRequest>, RepairRequest},
          {"joint", RunJoint, JointSeeds, DefaultOf<v1::MultiplyStreamRequest>, RepairJoint}};
}

}  // namespace gemmd::fuzz
