// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "gemmd/v1/resident.pb.h"
#include "kserve/v2/inference.pb.h"
#include "server/kserve/models.h"
#include "server/wire/listing.h"
#include "server/wire/tensor_convert.h"
#include "tests/fuzz/question.h"
#include "tests/fuzz/resident_tensors.h"

namespace gemmd::fuzz {
namespace {

using Tensors = ResidentTensors;

void AskSession(const v1::OpenSessionRequest& request) {
  // Without a token a new session would begin, and it would stay.
  if (request.token().empty()) return;
  const auto session = Tensors::Get().store.OpenSession(request.token(), "a");
  Demand(session.ok() == (request.token() == Tensors::Get().token()), "a token is another one");
}

absl::StatusOr<TensorState> Describe(const absl::StatusOr<TensorName>& name) {
  if (!name.ok()) return name.status();
  return Tensors::Get().store.Describe(Tensors::Get().session, *name);
}

// Describe, and Delete up to the point where it has read its request.
void AskTensor(const v1::TensorRef& request) {
  const auto state = Describe(ParseTensorRef("tensor", request));
  if (!state.ok()) return DemandBrief(state.status());
  const v1::TensorInfo told = ToWire(*state);
  Demand(told.name() == request.name() || told.handle() == request.handle(),
         "another tensor is told");
}

void AskKeepAlive(const v1::KeepAliveRequest& request) {
  const auto name = ParseTensorRef("tensor", request.tensor());
  if (!name.ok()) return DemandBrief(name.status());
  const auto lease =
      request.has_lease_ns() ? std::optional<int64_t>(request.lease_ns()) : std::nullopt;
  const auto pinned = request.has_pinned() ? std::optional<bool>(request.pinned()) : std::nullopt;
  const auto state = Tensors::Get().store.KeepAlive(Tensors::Get().session, *name, lease, pinned);
  if (!state.ok()) return DemandBrief(state.status());
  Demand(state->lease_ns > 0, "a tensor has no lease");
  Demand(lease.value_or(0) >= 0, "a negative lease is taken");
  Demand(!pinned || state->pinned == *pinned, "a tensor is pinned otherwise");
}

void AskTensors(const v1::ListTensorsRequest& request) {
  const auto pattern = NamePattern::Parse("pattern", request.pattern());
  if (!pattern.ok()) return DemandBrief(pattern.status());
  for (const ResidentTensor& tensor : kResidentTensors) (void)pattern->Matches(tensor.name);
}

void AskBytes(const v1::GetRequest& request) {
  const auto state = Describe(ParseTensorRef("tensor", request.tensor()));
  if (!state.ok()) return DemandBrief(state.status());
  const int64_t size = state->tensor->spec.bytes;
  const auto range = ParseRange(request, size);
  if (!range.ok()) return DemandBrief(range.status());
  Demand(range->offset >= 0 && range->bytes >= 0 && range->offset <= size - range->bytes,
         "bytes beside a tensor are read");
  Demand(range->offset == request.offset() &&
             (!request.has_bytes() || range->bytes == request.bytes()),
         "other bytes are read");
}

void AskCompress(const v1::CompressRequest& request) {
  const auto asked = ParseCompress(request);
  if (!asked.ok()) return DemandBrief(asked.status());
  Demand(asked->mask.has_value() == request.has_mask(), "a mask is lost");
  Demand(asked->keep.name == request.keep().name(), "a name is lost");
}

void AskUpload(const v1::PutBegin& request) {
  const auto upload = ParsePutBegin(request);
  if (!upload.ok()) return DemandBrief(upload.status());
  Demand(upload->digest.has_value() == !request.sha256().empty(), "a hash is lost");
  Demand(upload->spec.bytes >= 0 && upload->spec.layout.rows == request.spec().rows() &&
             upload->spec.layout.columns == request.spec().columns(),
         "a tensor has another shape");
  Demand(upload->spec.scale.size() == static_cast<size_t>(request.spec().scale().values_size()),
         "a tensor has other factors");
}

const Models& AllModels() {
  static const Models* const models = new Models(Tensors::Get().store);
  return *models;
}

template <typename Request>
absl::StatusOr<Model> FindModel(const Request& request) {
  static const auto* const user =
      new ModelUser{.session = Tensors::Get().token(), .caller = nullptr};
  absl::StatusOr<Model> model = AllModels().Find(*user, request.name(), request.version());
  if (!model.ok()) {
    DemandBrief(model.status());
    return model;
  }
  Demand(model->name == request.name(), "another model is found");
  Demand(AllModels().Find({}, request.name(), request.version()).ok() == (model->b == nullptr),
         "somebody else's model is found");
  return model;
}

void AskReady(const inference::ModelReadyRequest& request) { (void)FindModel(request).ok(); }

void AskMetadata(const inference::ModelMetadataRequest& request) {
  const auto model = FindModel(request);
  if (model.ok()) Demand(MetadataOf(*model).inputs_size() > 0, "a model has no inputs");
}

void AskConfig(const inference::ModelConfigRequest& request) {
  const auto model = FindModel(request);
  if (model.ok()) Demand(ConfigOf(*model).config().input_size() > 0, "a model has no inputs");
}

void AskStatistics(const inference::ModelStatisticsRequest& request) {
  const auto model = FindModel(request);
  if (!model.ok()) return;
  Demand(StatisticsOf(*model, {}).name() == request.name(), "another model is told");
}

void AskIndex(const inference::RepositoryIndexRequest& request) {
  const std::vector<Model> models =
      AllModels().List({.session = Tensors::Get().token(), .caller = nullptr});
  Demand(models.size() == std::size(kResidentTensors) + 1, "a model is missing");
  Demand(AllModels().List({}).size() == 1, "somebody else's models are listed");
  const inference::RepositoryIndexResponse index = IndexOf(models, request.ready());
  Demand(index.models_size() == static_cast<int>(models.size()) - (request.ready() ? 1 : 0),
         "a model is listed that does not serve, or one that serves is not");
}

}  // namespace

std::vector<Question> TensorQuestions() {
  return {
      QuestionOf<v1::OpenSessionRequest, AskSession>(),
      QuestionOf<v1::PutBegin, AskUpload>(),
      QuestionOf<v1::GetRequest, AskBytes>(),
      QuestionOf<v1::ListTensorsRequest, AskTensors>(),
      QuestionOf<v1::TensorRef, AskTensor>(),
      QuestionOf<v1::KeepAliveRequest, AskKeepAlive>(),
      QuestionOf<v1::CompressRequest, AskCompress>(),
      QuestionOf<inference::ModelReadyRequest, AskReady>(),
      QuestionOf<inference::ModelMetadataRequest, AskMetadata>(),
      QuestionOf<inference::ModelConfigRequest, AskConfig>(),
      QuestionOf<inference::ModelStatisticsRequest, AskStatistics>(),
      QuestionOf<inference::RepositoryIndexRequest, AskIndex>(),
  };
}

}  // namespace gemmd::fuzz
