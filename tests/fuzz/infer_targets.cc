// SPDX-License-Identifier: Apache-2.0
//
// Requests in the words of KServe, against protobuf's own parse of the same bytes.
#include <string>
#include <utility>
#include <vector>

#include "kernels/element.h"
#include "kserve/v2/inference.pb.h"
#include "server/kserve/convert_infer.h"
#include "server/wire/convert.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;
using inference::ModelInferRequest;

ReceiveQuota& Quota() {
  static ReceiveQuota* const quota = new ReceiveQuota(int64_t{1} << 30);
  return *quota;
}

std::string Joined(const std::vector<grpc::Slice>& slices) {
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// What is left of the request once its contents are cut out, and what these are.
void CheckRead(InferMessage& message, ModelInferRequest want) {
  want.DiscardUnknownFields();
  Demand(static_cast<int>(message.contents().size()) == want.inputs_size(),
         "protobuf finds another number of inputs");
  for (int i = 0; i < want.inputs_size(); ++i) {
    const InputContents& contents = message.contents()[static_cast<size_t>(i)];
    const std::string bytes = Joined(contents.slices);
    Demand(contents.bytes == static_cast<int64_t>(bytes.size()), "contents have another length");
    if (want.raw_input_contents_size() > 0) {
      Demand(contents.form == InputContents::Form::kRaw && bytes == want.raw_input_contents(i),
             "an input has other bytes");
    }
    want.mutable_inputs(i)->clear_contents();
  }
  want.clear_raw_input_contents();
  // Maps have no order of their own.
  Demand(message.request().ByteSizeLong() == want.ByteSizeLong(),
         "protobuf parses another message");
}

void RunInfer(std::string_view input) {
  Choices choices(input);
  ModelInferRequest want;
  const bool is_message = want.ParseFromArray(input.data(), static_cast<int>(input.size()));
  grpc::ByteBuffer buffer = Cut(input, choices);
  InferMessage message(buffer);
  if (!message.Read().ok()) {
    (void)message.UnparsedId();
    return;
  }
  // Numbers are looked at later.
  if (is_message) CheckRead(message, want);
  const absl::StatusOr<int64_t> most = PrepareContents(message);
  if (!most.ok()) return;
  Demand(*most >= 0, "contents take less than nothing");
  v1::MultiplyRequest product;
  HeldFields held;
  const Model gemm = {std::string(kGemmModel), nullptr};
  const absl::StatusOr<InferAsked> asked = ConvertInfer(message, gemm, Quota(), product, held);
  if (!asked.ok()) return;
  Demand(is_message, "a request is taken that is no message");
  const auto parsed = ParseMultiply(product, &held);
  if (!parsed.ok()) {
    const absl::Status renamed = asked->places.Rename(parsed.status());
    Demand(renamed.code() == parsed.status().code(), "a refusal has another code");
    return;
  }
  Demand(Validate(parsed->job.problem).ok(), "what was parsed is not valid");
}

// An input of a kind that there is, with as many bytes as its shape says.
void RepairInput(ModelInferRequest& request, int position, Choices& choices) {
  constexpr const char* kNames[] = {"A", "B", "C", "BIAS", "A_SCALE", "B_SCALE"};
  constexpr std::pair<const char*, size_t> kDatatypes[] = {
      {"FP32", 4}, {"FP16", 2}, {"INT8", 1}, {"UINT8", 1}, {"FP64", 8}};
  auto& input = *request.mutable_inputs(position);
  input.set_name(kNames[position % 6]);
  const auto [datatype, width] = kDatatypes[choices.Below(position > 1 ? 1 : 5)];
  input.set_datatype(datatype);
  size_t elements = 1;
  if (input.shape_size() > 3) input.mutable_shape()->Truncate(3);
  for (int64_t& extent : *input.mutable_shape()) {
    extent &= 7;
    elements *= static_cast<size_t>(extent);
  }
  if (!choices.OnceIn(4)) input.clear_parameters();
  input.clear_contents();
  request.add_raw_input_contents(std::string(elements * width, '\1'));
}

void RepairInfer(Message& message, Choices& choices) {
  auto& request = static_cast<ModelInferRequest&>(message);
  if (choices.OnceIn(4)) return;
  request.clear_raw_input_contents();
  while (request.inputs_size() < 2) {
    auto& input = *request.add_inputs();
    input.add_shape(4);
    input.add_shape(4);
  }
  while (request.inputs_size() > 6) request.mutable_inputs()->RemoveLast();
  for (int i = 0; i < request.inputs_size(); ++i) RepairInput(request, i, choices);
  if (!choices.OnceIn(3)) request.clear_outputs();
  if (!choices.OnceIn(3)) request.clear_parameters();
}

std::vector<std::string> InferSeeds() {
  std::vector<std::string> seeds;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Choices choices(seed);
    ModelInferRequest request;
    request.set_model_name("gemm");
    request.set_id("request");
    request.add_outputs()->set_name("D");
    (*request.mutable_parameters())["alpha"].set_double_param(0.5);
    RepairInfer(request, choices);
    seeds.push_back(request.SerializeAsString());
    // As numbers.
    request.clear_raw_input_contents();
    for (auto& input : *request.mutable_inputs()) {
      input.set_datatype(seed % 2 == 0 ? "FP32" : "INT8");
      for (int i = 0; i < 16; ++i) {
        if (seed % 2 == 0) input.mutable_contents()->add_fp32_contents(1);
        if (seed % 2 == 1) input.mutable_contents()->add_int_contents(-i);
      }
    }
    seeds.push_back(request.SerializeAsString());
  }
  return seeds;
}

}  // namespace

std::vector<Target> InferTargets() {
  return {{.name = "infer",
           .run = RunInfer,
           .seeds = InferSeeds,
           .message = DefaultOf<ModelInferRequest>,
           .repair = RepairInfer}};
}

}  // namespace gemmd::fuzz
