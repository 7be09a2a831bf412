// SPDX-License-Identifier: Apache-2.0
//
// Products of resident tensors, as Multiply and Explain take them: reads stay within the tensors
// that the request names.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gemmd/v1/gemm.pb.h"
#include "kernels/problem.h"
#include "server/wire/convert.h"
#include "tests/fuzz/choice.h"
#include "tests/fuzz/resident_tensors.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;

void CheckWithin(const Source& source, const Tensor* tensor) {
  if (tensor == nullptr) return;
  const std::byte* const begin = tensor->bytes->host();
  int64_t bytes = 0;
  for (const Piece& piece : source.pieces) {
    Demand(piece.data() >= begin && piece.data() + piece.size() <= begin + tensor->bytes->bytes(),
           "a product reads beside its tensor");
    bytes += static_cast<int64_t>(piece.size());
  }
  Demand(bytes == source.bytes, "a source has another number of bytes");
}

// D within its tensor, which starts at `memory`.
void CheckD(const Problem& problem, const std::byte* memory, const Tensor& tensor) {
  const absl::StatusOr<ByteCount> bytes = BytesOf("d", problem.d, problem.batch);
  Demand(bytes.ok(), "D has no size");
  const std::byte* const begin = tensor.bytes->host();
  Demand(bytes->least == 0 ||
             (memory >= begin && bytes->least <= tensor.bytes->bytes() - (memory - begin)),
         "D leaves its tensor");
}

void CheckParsed(const Product& parsed) {
  Demand(Validate(parsed.job.problem).ok(), "what was parsed is not valid");
  const ProductTensors* const tensors = parsed.tensors.get();
  if (tensors == nullptr) return;
  CheckWithin(parsed.job.a, tensors->read(OperandRole::kA));
  CheckWithin(parsed.job.b, tensors->read(OperandRole::kB));
  CheckWithin(parsed.job.c, tensors->read(OperandRole::kC));
  Demand(tensors->resident_bytes() >= 0 && tensors->copied_bytes() >= 0,
         "tensors have less than no bytes");
  if (tensors->written() != nullptr) {
    CheckD(parsed.job.problem, parsed.job.d.memory, *tensors->written());
  }
}

void RunResident(std::string_view input) {
  Choices choices(input);
  v1::MultiplyRequest request;
  if (!request.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  ResidentTensors& tensors = ResidentTensors::Get();
  const std::string token = tensors.token();
  // An unknown session has no tensors.
  v1::MultiplyRequest strange = request;
  Product refused;
  const absl::Status stranger =
      ParseWithTensors(tensors.store, {.token = "x"}, strange, nullptr, refused);
  Demand(!stranger.ok() || refused.tensors == nullptr, "somebody else's tensors are read");

  v1::MultiplyRequest explained = request;
  Product described;
  const bool is_described =
      ParseWithTensors(tensors.store, {.token = token}, explained, nullptr, described).ok();
  if (is_described) {
    Demand(Validate(described.job.problem).ok(), "what is explained is not valid");
    if (choices.OnceIn(16)) {
      CheckChoice(static_cast<DeviceKind>(choices.Below(3)), described.job.problem,
                  described.constraints, choices.OnceIn(8));
    }
  }
  // A caller that may not have tensors has none, whatever its session.
  static const Identity* const nobody = new Identity{.name = "a"};
  v1::MultiplyRequest forbidden = request;
  Product denied;
  const absl::Status right = ParseWithTensors(tensors.store, {.token = token, .identity = nobody},
                                              forbidden, nullptr, denied);
  Demand(!right.ok() || denied.tensors == nullptr, "somebody without a right reads tensors");
  const HeldFields held;
  // On a stream the session was found earlier.
  static const auto session =
      std::make_shared<const TensorStore::SessionUse>(tensors.store.Use(token).value());
  const TensorCaller caller = {.token = token, .session = choices.OnceIn(2) ? session : nullptr};
  Product parsed;
  if (!ParseWithTensors(tensors.store, caller, request, &held, parsed).ok()) return;
  const bool has_nan = std::isnan(request.alpha()) || std::isnan(request.beta());
  Demand(is_described && (has_nan || described.job.problem == parsed.job.problem),
         "a request and its description are different problems");
  CheckParsed(parsed);
}

// Names an existing part of an existing tensor. Gives rows and columns of op(X).
std::pair<int64_t, int64_t> RepairOperand(v1::Operand& operand, Choices& choices) {
  const ResidentTensor& tensor = kResidentTensors[choices.Below(std::size(kResidentTensors))];
  v1::TensorPart& part = *operand.mutable_tensor();
  part.mutable_tensor()->set_name(tensor.name);
  if (choices.OnceIn(4)) return {tensor.rows, tensor.columns};
  if (!choices.OnceIn(4)) part.clear_rows();
  if (!choices.OnceIn(4)) part.clear_columns();
  part.set_first_row(choices.OnceIn(2) ? 0 : part.first_row() & 7);
  part.set_first_column(choices.OnceIn(2) ? 0 : part.first_column() & 8);
  if (part.has_rows()) part.set_rows(part.rows() & 7);
  if (part.has_columns()) part.set_columns(part.columns() & 8);
  part.set_first_matrix(tensor.matrices > 1 ? part.first_matrix() & 1 : 0);
  if (tensor.matrices == 1) part.clear_matrices();
  if (!choices.OnceIn(8)) {
    operand.clear_order();
    operand.clear_leading_dimension();
    operand.clear_batch_stride();
    operand.clear_sparsity();
    operand.clear_type();
    operand.clear_scale();
  }
  const int64_t rows = part.has_rows() ? part.rows() : tensor.rows - part.first_row();
  const int64_t columns =
      part.has_columns() ? part.columns() : tensor.columns - part.first_column();
  if (operand.transpose()) return {columns, rows};
  return {rows, columns};
}

void RepairResident(Message& message, Choices& choices) {
  auto& request = static_cast<v1::MultiplyRequest&>(message);
  if (choices.OnceIn(8)) return;
  const auto [m, k] = RepairOperand(*request.mutable_a(), choices);
  request.set_m(m);
  request.set_k(k);
  if (!choices.OnceIn(8)) {
    // A tensor of the same type and depth, if one exists.
    for (int i = 0; i < 16; ++i) {
      const auto [rows, columns] = RepairOperand(*request.mutable_b(), choices);
      request.set_n(columns);
      if (rows == k) break;
    }
  }
  if (request.has_batch() && !choices.OnceIn(4)) request.set_batch(choices.OnceIn(2) ? 1 : 3);
  if (!choices.OnceIn(4)) {
    request.clear_accumulation_type();
    request.clear_kernel();
    request.clear_bias();
  }
  if (choices.OnceIn(2)) {
    request.clear_c();
    request.clear_beta();
  } else {
    request.set_beta(1);
    RepairOperand(*request.mutable_c(), choices);
  }
  v1::OutputSpec& d = *request.mutable_d();
  if (!choices.OnceIn(4)) {
    d.clear_type();
    d.clear_order();
    d.clear_leading_dimension();
    d.clear_batch_stride();
  }
  if (choices.OnceIn(3)) {
    const char* const names[] = {"sum", "batch of sums", "count", "weights", "by columns"};
    d.mutable_tensor()->mutable_tensor()->set_name(names[choices.Below(std::size(names))]);
    if (choices.OnceIn(2)) {
      d.mutable_tensor()->clear_first_row();
      d.mutable_tensor()->clear_first_column();
      d.mutable_tensor()->clear_first_matrix();
      d.mutable_tensor()->set_rows(request.m());
      d.mutable_tensor()->set_columns(request.n());
    }
    // D may be the same memory as C.
    if (choices.OnceIn(2) && request.has_c()) *request.mutable_c()->mutable_tensor() = d.tensor();
  } else if (choices.OnceIn(2)) {
    d.mutable_new_tensor();
  } else if (!choices.OnceIn(3)) {
    d.clear_destination();
  }
}

// A, B and D with these names, of 16 rows and columns.
v1::MultiplyRequest ProductOf(const char* a, const char* b, const char* d) {
  v1::MultiplyRequest request;
  request.set_m(16);
  request.set_n(16);
  request.set_k(16);
  request.mutable_a()->mutable_tensor()->mutable_tensor()->set_name(a);
  request.mutable_b()->mutable_tensor()->mutable_tensor()->set_name(b);
  if (*d != 0) request.mutable_d()->mutable_tensor()->mutable_tensor()->set_name(d);
  return request;
}

// One request of each unusual kind.
std::vector<std::string> UnusualSeeds() {
  std::vector<v1::MultiplyRequest> requests = {
      ProductOf("weights", "weights", "weights"), ProductOf("weights", "weights", "sparse"),
      ProductOf("bytes", "scaled", "scaled"),     ProductOf("scaled rows", "scaled columns", ""),
      ProductOf("sum", "sum", "count"),           ProductOf("batch", "batch", "batch of sums")};
  requests[3].set_k(32);
  requests.back().set_batch(3);
  for (const char* const c : {"sum", "scaled", "weights"}) {
    requests.push_back(ProductOf("weights", "weights", "sum"));
    requests.back().set_beta(1);
    requests.back().mutable_c()->mutable_tensor()->mutable_tensor()->set_name(c);
    requests.push_back(requests.back());
    requests.back().mutable_c()->set_transpose(true);
    requests.push_back(requests.back());
    requests.back().clear_d();
  }
  requests.push_back(ProductOf("batch", "batch", ""));
  requests.back().set_batch(3);
  requests.back().mutable_d()->mutable_new_tensor();
  requests.push_back(requests.back());
  requests.back().mutable_d()->set_batch_stride(1024);
  requests.push_back(requests.back());
  requests.back().mutable_d()->set_leading_dimension(20);
  std::vector<std::string> seeds;
  for (const v1::MultiplyRequest& request : requests) seeds.push_back(request.SerializeAsString());
  return seeds;
}

std::vector<std::string> ResidentSeeds() {
  std::vector<std::string> seeds = UnusualSeeds();
  for (uint64_t number = 0; number < 60; ++number) {
    Choices choices(number);
    v1::MultiplyRequest request;
    if (number % 3 == 0) request.set_batch(3);
    if (number % 4 == 0) request.mutable_b()->set_transpose(true);
    RepairResident(request, choices);
    seeds.push_back(request.SerializeAsString());
  }
  for (const ResidentTensor& tensor : kResidentTensors) {
    v1::MultiplyRequest request;
    request.set_m(tensor.rows);
    request.set_n(tensor.rows);
    request.set_k(tensor.columns);
    request.set_batch(tensor.matrices);
    request.mutable_a()->mutable_tensor()->mutable_tensor()->set_name(tensor.name);
    *request.mutable_b() = request.a();
    request.mutable_b()->set_transpose(true);
    seeds.push_back(request.SerializeAsString());
  }
  return seeds;
}

}  // namespace

std::vector<Target> ResidentTargets() {
  return {{"resident", RunResident, ResidentSeeds, DefaultOf<v1::MultiplyRequest>, RepairResident}};
}

}  // namespace gemmd::fuzz
