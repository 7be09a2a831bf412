// SPDX-License-Identifier: Apache-2.0
//
// Requests in KServe's form, compared with protobuf's own parse of the same bytes.
#include <string>
#include <vector>

#include "kernels/matrix/element.h"
#include "kserve/v2/inference.pb.h"
#include "server/kserve/convert_infer.h"
#include "server/wire/convert.h"
#include "tests/fuzz/infer_seeds.h"
#include "tests/fuzz/resident_tensors.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using inference::ModelInferRequest;

ReceiveQuota& InferQuota() {
  static ReceiveQuota* const quota = new ReceiveQuota(int64_t{1} << 30);
  return *quota;
}

std::string Joined(const ReceivedSlices& slices) {
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// Checks the request without its contents, and the contents that were cut out of it.
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
  // Maps have no fixed order, so only sizes are compared.
  Demand(message.request().ByteSizeLong() == want.ByteSizeLong(),
         "protobuf parses another message");
}

// Makes contents long enough to stay where they arrived, or longer than numbers and text may be.
void Stretch(ModelInferRequest& request, Choices& choices) {
  constexpr size_t kBytes = 40000;
  if (choices.OnceIn(8)) return request.mutable_id()->resize(kBytes, 's');
  for (std::string& contents : *request.mutable_raw_input_contents()) {
    if (choices.OnceIn(2)) contents.resize(kBytes, 's');
  }
  for (auto& input : *request.mutable_inputs()) {
    if (!input.has_contents() || choices.OnceIn(2)) continue;
    auto& contents = *input.mutable_contents();
    while (contents.ByteSizeLong() < kBytes / 2) {
      if (input.datatype() == "FP32") {
        contents.mutable_fp32_contents()->Resize(contents.fp32_contents_size() + 1000, 1);
      } else {
        contents.mutable_int_contents()->Resize(contents.int_contents_size() + 1000, 1);
      }
    }
  }
}

void RunInfer(std::string_view input) {
  Choices choices(input);
  ModelInferRequest want;
  const bool is_message = want.ParseFromArray(input.data(), static_cast<int>(input.size()));
  std::string bytes(input);
  if (is_message && choices.OnceIn(32)) {
    Stretch(want, choices);
    bytes = want.SerializeAsString();
  }
  grpc::ByteBuffer buffer = Cut(bytes, choices);
  InferMessage message(buffer);
  if (!message.Read().ok()) {
    (void)message.UnparsedId();
    return;
  }
  // Contents as numbers are checked later.
  if (is_message) CheckRead(message, want);
  Demand(message.request_bytes() >= 0, "a request takes less than nothing");
  const absl::StatusOr<int64_t> most = PrepareContents(message);
  if (!most.ok()) return;
  Demand(*most >= 0, "contents take less than nothing");
  v1::MultiplyRequest product;
  HeldFields held;
  static const Models* const models = new Models(ResidentTensors::Get().store);
  const absl::StatusOr<Model> model =
      models->Find({.session = ResidentTensors::Get().token(), .caller = nullptr},
                   message.request().model_name(), message.request().model_version());
  if (!model.ok()) return;
  const absl::StatusOr<InferAsked> asked =
      ConvertInfer(message, *model, InferQuota(), product, held);
  if (!asked.ok()) return;
  Demand(is_message, "a request is taken that is no message");
  Product parsed;
  const absl::Status status =
      ParseWithTensors(ResidentTensors::Get().store, {.token = ResidentTensors::Get().token()},
                       product, &held, parsed);
  if (!status.ok()) {
    Demand(asked->places.Rename(status).code() == status.code(), "a refusal has another code");
    return;
  }
  Demand(Validate(parsed.job.problem).ok(), "what was parsed is not valid");
  // Every type name in an answer is also valid in a request.
  const ElementType d = parsed.job.problem.d.type;
  Demand(TypeOfWire(ToWire(d)) == d, "a type has another number");
  const auto named = ParseInputType("d", DatatypeOf(d), gemmd::NameOf(d), std::nullopt);
  Demand(named.ok() && *named == d, "a type is answered that cannot be asked for");
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
