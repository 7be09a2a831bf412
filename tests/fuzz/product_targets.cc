// SPDX-License-Identifier: Apache-2.0
//
// Requests for products, alone and several in one message: compared with protobuf's own parse of
// the same bytes, and with the sizes that the client computes.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "client/operand_size.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/wire/convert.h"
#include "server/wire/incoming.h"
#include "tests/fuzz/choice.h"
#include "tests/fuzz/product_seeds.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;

ReceiveQuota& Quota() {
  static ReceiveQuota* const quota = new ReceiveQuota(int64_t{1} << 30);
  return *quota;
}

// Client and server compute the bytes of an operand independently.
void CheckSize(const v1::Operand& operand, const MatrixLayout& layout, int64_t batch) {
  const auto ours = BytesOf("x", layout, batch);
  Demand(ours.ok(), "a matrix of a valid problem has no size");
  const auto theirs =
      SizeOperand("x", ShapeOf(operand, ToWire(layout.type), layout.rows, layout.columns, batch));
  Demand(theirs.ok(), "the client refuses a matrix that the server takes");
  Demand(theirs->min == ours->least && theirs->full == ours->full,
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

void CheckParsed(const v1::MultiplyRequest& request, const Product& parsed, bool has_bytes) {
  const Problem& problem = parsed.job.problem;
  Demand(Validate(problem).ok(), "what was parsed is not valid");
  Demand(Operations(problem) >= 0, "a product has less than no operations");
  Demand(Describe(problem).size() < 500, "a product's description is long");
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

// Puts the fields that were held back into the message, as protobuf would have parsed them.
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

// Releases the operands one piece after the other, as a job does once it has read them.
void Release(const Job& job) {
  for (const Source* const source : {&job.a, &job.b, &job.c, &job.bias}) {
    if (source->keeper == nullptr) continue;
    for (size_t i = 0; i < source->pieces.size(); ++i) source->keeper->Release(i, 1);
  }
}

// Reads the bytes of one request and compares the outcome with protobuf's.
void CheckIncoming(Incoming incoming, std::string_view bytes, Choices& choices) {
  v1::MultiplyRequest want;
  const bool is_message = want.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  const std::string id = incoming.ShortText(v1::MultiplyRequest::kRequestIdFieldNumber, size_t{64});
  Demand(id.size() <= 64, "a short text is long");
  v1::MultiplyRequest got;
  HeldFields held;
  const absl::StatusOr<int64_t> max_bytes = incoming.Examine(got);
  const absl::Status status =
      max_bytes.ok() ? incoming.Parse(got, Quota(), held) : max_bytes.status();
  if (IsAboutCountsOfFields(status)) return;
  if (is_message && static_cast<int64_t>(want.request_id().size()) > kMaxTextBytes) {
    return Demand(!status.ok(), "a text of any length is taken");
  }
  Demand(status.ok() == is_message, "protobuf takes another message");
  if (!is_message) return;
  Demand(id == want.request_id().substr(0, 64), "a short text is another one");
  Demand(*max_bytes >= static_cast<int64_t>(bytes.size()), "a message takes less than its bytes");

  Product described;
  const bool is_described = ParseMultiply(got, nullptr, described).ok();
  if (is_described) {
    CheckParsed(got, described, false);
    // Asking hundreds of kernels takes longer than everything else here.
    if (choices.OnceIn(8)) {
      const auto kind = static_cast<DeviceKind>(choices.Below(3));
      CheckChoice(kind, described.job.problem, described.constraints, choices.OnceIn(8));
    }
  }
  Product parsed;
  const bool is_parsed = ParseMultiply(got, &held, parsed).ok();
  if (is_parsed) {
    // NaN does not equal itself, so it is compared apart.
    const bool has_nan = std::isnan(got.alpha()) || std::isnan(got.beta());
    Demand(is_described && (has_nan || described.job.problem == parsed.job.problem),
           "a request and its description are different problems");
    CheckParsed(got, parsed, true);
  }
  want.DiscardUnknownFields();
  RestoreAll(got, held);
  Demand(got.SerializeAsString() == want.SerializeAsString(), "protobuf parses another message");
  if (is_parsed) Release(parsed.job);
}

// Makes data so long that it stays where it arrived.
void Stretch(v1::MultiplyRequest& request, Choices& choices) {
  if (choices.OnceIn(2)) {
    const auto k = static_cast<size_t>(kHeldFromBytes) + choices.Below(100);
    request = PlainRequest(v1::ELEMENT_TYPE_S8);
    request.set_m(1);
    request.set_n(1);
    request.set_k(static_cast<int64_t>(k));
    request.mutable_a()->set_data(std::string(k, 's'));
    request.mutable_b()->set_data(std::string(k, 's'));
    return;
  }
  const auto lengthen = [&](std::string& data) {
    if (!choices.OnceIn(3)) data.resize(kHeldFromBytes - 1 + choices.Below(3) * 20000, 's');
  };
  if (request.a().has_data()) lengthen(*request.mutable_a()->mutable_data());
  if (request.b().has_data()) lengthen(*request.mutable_b()->mutable_data());
  if (request.has_bias()) lengthen(*request.mutable_bias()->mutable_data());
  if (choices.OnceIn(256)) request.mutable_request_id()->resize(kMaxTextBytes + 1, 's');
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
  std::string bytes(input);
  if (is_message && want.requests_size() > 1 && choices.OnceIn(1024)) {
    // Longer than the data of several products may be.
    std::string& data = *want.mutable_requests(0)->mutable_a()->mutable_data();
    data.resize(choices.OnceIn(2) ? kMaxJointBytes : kMaxJointBytes / 2);
    bytes = want.SerializeAsString();
  }
  grpc::ByteBuffer buffer = Cut(bytes, choices);
  JointRequest joint(buffer);
  const absl::Status status = joint.Cut();
  if (!status.ok()) {
    const bool is_bounded = static_cast<size_t>(want.requests_size()) > kMaxJointRequests ||
                            static_cast<int64_t>(bytes.size()) > kMaxJointBytes ||
                            IsAboutCountsOfFields(status);
    Demand(!is_message || is_bounded, "a message is refused that protobuf takes");
    return;
  }
  Demand(!is_message || joint.size() == static_cast<size_t>(want.requests_size()),
         "protobuf finds another number of products");
  bool are_messages = true;
  while (joint.size() > 0) {
    Incoming product = *joint.Take();
    const auto product_bytes = product.wire_bytes();
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
    Demand(product_bytes <= static_cast<int64_t>(bytes.size()),
           "a product has more than all bytes");
  }
  Demand(is_message == are_messages, "products are messages, and all of them are none");
}

void RepairJoint(Message& message, Choices& choices) {
  for (v1::MultiplyRequest& one :
       *static_cast<v1::MultiplyStreamRequest&>(message).mutable_requests()) {
    RepairRequest(one, choices);
  }
}

std::vector<std::string> MultiplySeeds() {
  std::vector<std::string> seeds;
  for (const v1::MultiplyRequest& request : SeedRequests()) {
    seeds.push_back(request.SerializeAsString());
  }
  // More fields than are read, and more bytes of unknown fields.
  seeds.push_back(PlainRequest().SerializeAsString());
  for (int i = 0; i < 1030; ++i) seeds.back() += std::string("\x10\x04", 2);
  seeds.push_back("\xfa\x7f\x90\x08" + std::string(1040, 'u'));
  return seeds;
}

std::vector<std::string> JointSeeds() {
  v1::MultiplyStreamRequest all;
  // The second one has a tag of nine bytes, which protobuf does not accept.
  std::vector<std::string> seeds = {"", std::string("\xfa\xf0\xcd\xfb\xf7\xf6\xcd\xff:\0", 10)};
  for (const v1::MultiplyRequest& request : SeedRequests()) {
    *all.add_requests() = request;
    if (all.requests_size() % 5 == 1) seeds.push_back(all.SerializeAsString());
    if (all.requests_size() > 6) all.Clear();
  }
  // More products than allowed, and more bytes of unknown fields.
  seeds.emplace_back();
  for (int i = 0; i < 260; ++i) seeds.back() += std::string("\x0a\x00", 2);
  seeds.push_back("\xfa\x7f\x90\x08" + std::string(1040, 'u'));
  return seeds;
}

}  // namespace

std::vector<Target> ProductTargets() {
  return {{"multiply", RunMultiply, MultiplySeeds, DefaultOf<v1::MultiplyRequest>, RepairRequest},
          {"joint", RunJoint, JointSeeds, DefaultOf<v1::MultiplyStreamRequest>, RepairJoint}};
}

}  // namespace gemmd::fuzz
