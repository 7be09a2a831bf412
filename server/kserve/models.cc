// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/models.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/kserve/convert_infer.h"

namespace gemmd {

namespace {

absl::Status NoSuchModel() {
  return absl::NotFoundError(
      "model: got a name or version that there is not, want \"gemm\" or the name of a resident "
      "tensor of the session in the metadata gemmd-session, version 1");
}

}  // namespace

absl::Status CheckServes(const Model& model) {
  if (model.b == nullptr) return absl::OkStatus();
  if (model.b->spec.blocks) {
    return absl::FailedPreconditionError(
        GotWant("model", "a tensor with factors of blocks",
                "one without: KServe's protocol has no A for it; multiply by gemmd.v1"));
  }
  if (!model.b->spec.layout.is_sparse()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      GotWant("model", "a sparse tensor", "a dense one, since only A may be sparse"));
}

absl::StatusOr<TensorStore::SessionUse> Models::SessionOf(const ModelUser& user) const {
  const Identity* const caller = user.caller.get();
  if (caller != nullptr && !caller->grant.roles.Has(Role::kTensors)) return NoSuchModel();
  absl::StatusOr<TensorStore::SessionUse> session =
      store_.Use(user.session, caller == nullptr ? "" : caller->name);
  return session.ok() ? std::move(session) : NoSuchModel();
}

absl::StatusOr<Model> Models::Find(const ModelUser& user, std::string_view name,
                                   std::string_view version) const {
  RETURN_IF_ERROR(CheckNameLength("model_name", name));
  if (!version.empty() && version != kModelVersion) return NoSuchModel();
  if (name == kGemmModel) return Model{std::string(name), nullptr};
  if (name.empty()) return NoSuchModel();
  ASSIGN_OR_RETURN(const TensorStore::SessionUse session, SessionOf(user));
  absl::StatusOr<TensorState> state = store_.Describe(session, TensorName(std::string(name)));
  if (!state.ok()) return NoSuchModel();
  Model model = {std::string(name), std::move(state->tensor)};
  RETURN_IF_ERROR(CheckServes(model));
  return model;
}

std::vector<Model> Models::List(const ModelUser& user) const {
  std::vector<Model> models = {{std::string(kGemmModel), nullptr}};
  const absl::StatusOr<TensorStore::SessionUse> session = SessionOf(user);
  if (!session.ok()) return models;
  for (TensorState& state : store_.List(*session)) {
    const std::string& name = state.tensor->name;
    if (name.empty() || name == kGemmModel || name == models.back().name) continue;
    models.push_back({name, std::move(state.tensor)});
  }
  return models;
}

ModelTotals& ModelCounts::At(const Key& model) {
  if (!model) return gemm_;
  if (tensors_.size() >= kMaxTensors && !tensors_.contains(*model)) {
    tensors_.erase(std::min_element(tensors_.begin(), tensors_.end(), [](auto& a, auto& b) {
      return a.second.used < b.second.used;
    }));
  }
  Entry& entry = tensors_[*model];
  entry.used = ++uses_;
  return entry.totals;
}

void ModelCounts::AddSuccess(const Key& model, const v1::Timing& timing, int64_t matrices,
                             int64_t now_ms) {
  MutexLock lock(&mutex_);
  ModelTotals& totals = At(model);
  totals.last_ms = now_ms;
  totals.matrices = SaturatingSum(totals.matrices, matrices);
  totals.success.Add(timing.total_ns());
  totals.queue.Add(timing.queue_ns());
  totals.copy_in.Add(timing.copy_in_ns());
  totals.compute.Add(timing.compute_ns());
  totals.copy_out.Add(timing.copy_out_ns());
}

void ModelCounts::AddFailure(const Key& model, int64_t took_ns) {
  MutexLock lock(&mutex_);
  At(model).fail.Add(took_ns);
}

ModelTotals ModelCounts::Read(const Key& model) const {
  MutexLock lock(&mutex_);
  if (!model) return gemm_;
  const auto entry = tensors_.find(*model);
  return entry == tensors_.end() ? ModelTotals() : entry->second.totals;
}

namespace {

using inference::ModelMetadataResponse;

constexpr char kPlatform[] = "gemmd";
constexpr int64_t kAny = -1;

// One tensor of a model, for both metadata and configuration.
struct DescribedTensor {
  std::string_view name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  bool is_optional = false;
};

struct DescribedModel {
  std::vector<DescribedTensor> inputs;
  DescribedTensor d;
};

// The product takes any types, but metadata can name only one.
DescribedModel DescribeGemm() {
  constexpr ElementType kType = ElementType::kF32;
  return {{{"A", kType, {kAny, kAny}},
           {"B", kType, {kAny, kAny}},
           {"C", kType, {kAny, kAny}, true},
           {"BIAS", kType, {kAny}, true},
           {"A_SCALE", kType, {kAny}, true},
           {"B_SCALE", kType, {kAny}, true}},
          {"D", kType, {kAny, kAny}}};
}

DescribedModel DescribeTensor(const TensorSpec& spec) {
  const MatrixLayout& b = spec.layout;
  // For an A of the same type as B.
  const ElementType d_type = DefaultAccumulation(b.type, b.type).value_or(ElementType::kF32);
  DescribedModel model;
  std::vector<int64_t> batch;
  if (spec.matrices != 1) batch = {spec.matrices};
  const auto shape = [&](int64_t rows, int64_t columns) {
    std::vector<int64_t> all = batch;
    all.insert(all.end(), {rows, columns});
    return all;
  };
  model.inputs.push_back({"A", b.type, shape(kAny, RowExtent(b.type, b.rows))});
  model.inputs.push_back({"C", d_type, shape(kAny, b.columns), true});
  model.inputs.push_back({"BIAS", d_type, {b.columns}, true});
  if (BitsOf(b.type) == 8) model.inputs.push_back({"A_SCALE", ElementType::kF32, {kAny}, true});
  model.d = {"D", d_type, shape(kAny, b.columns)};
  return model;
}

DescribedModel Describe(const Model& model) {
  return model.b == nullptr ? DescribeGemm() : DescribeTensor(model.b->spec);
}

void Fill(const DescribedTensor& tensor, ModelMetadataResponse::TensorMetadata& wire) {
  wire.set_name(std::string(tensor.name));
  wire.set_datatype(std::string(DatatypeOf(tensor.type)));
  wire.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
}

void Fill(const DurationSum& sum, inference::StatisticDuration& wire) {
  wire.set_count(static_cast<uint64_t>(sum.count));
  wire.set_ns(static_cast<uint64_t>(sum.ns));
}

// Properties that neither inputs nor outputs show, by name. Optional inputs are not in the lists of
// inputs, which would make them required: metadata cannot mark them optional, and perf_analyzer
// rejects an input of the configuration that is not in the metadata.
std::map<std::string, std::string> PropertiesOf(const Model& model, const DescribedModel& told) {
  std::vector<std::string> optional;
  for (const DescribedTensor& input : told.inputs) {
    if (input.is_optional) optional.emplace_back(input.name);
  }
  std::map<std::string, std::string> properties = {
      {"optional_inputs", absl::StrJoin(optional, ",")}};
  if (model.b != nullptr) properties.emplace("type", NameOf(model.b->spec.layout.type));
  return properties;
}

}  // namespace

ModelMetadataResponse MetadataOf(const Model& model) {
  const DescribedModel described = Describe(model);
  ModelMetadataResponse wire;
  wire.set_name(model.name);
  wire.add_versions(std::string(kModelVersion));
  wire.set_platform(kPlatform);
  for (const DescribedTensor& input : described.inputs) {
    if (!input.is_optional) Fill(input, *wire.add_inputs());
  }
  Fill(described.d, *wire.add_outputs());
  for (const auto& [name, value] : PropertiesOf(model, described)) {
    (*wire.mutable_properties())[name] = value;
  }
  return wire;
}

inference::ModelConfigResponse ConfigOf(const Model& model) {
  const DescribedModel described = Describe(model);
  inference::ModelConfigResponse response;
  inference::ModelConfig& wire = *response.mutable_config();
  wire.set_name(model.name);
  wire.set_platform(kPlatform);
  wire.set_backend(kPlatform);
  for (const DescribedTensor& input : described.inputs) {
    if (input.is_optional) continue;
    inference::ModelInput& told = *wire.add_input();
    told.set_name(std::string(input.name));
    told.set_data_type(ConfigDatatypeOf(input.type));
    told.mutable_dims()->Assign(input.shape.begin(), input.shape.end());
  }
  inference::ModelOutput& d = *wire.add_output();
  d.set_name(std::string(described.d.name));
  d.set_data_type(ConfigDatatypeOf(described.d.type));
  d.mutable_dims()->Assign(described.d.shape.begin(), described.d.shape.end());
  for (const auto& [name, value] : PropertiesOf(model, described)) {
    (*wire.mutable_parameters())[name].set_string_value(value);
  }
  return response;
}

inference::ModelStatistics StatisticsOf(const Model& model, const ModelTotals& totals) {
  inference::ModelStatistics wire;
  wire.set_name(model.name);
  wire.set_version(std::string(kModelVersion));
  wire.set_last_inference(static_cast<uint64_t>(totals.last_ms));
  wire.set_inference_count(static_cast<uint64_t>(totals.matrices));
  wire.set_execution_count(static_cast<uint64_t>(totals.success.count));
  inference::InferStatistics& sums = *wire.mutable_inference_stats();
  Fill(totals.success, *sums.mutable_success());
  Fill(totals.fail, *sums.mutable_fail());
  Fill(totals.queue, *sums.mutable_queue());
  Fill(totals.copy_in, *sums.mutable_compute_input());
  Fill(totals.compute, *sums.mutable_compute_infer());
  Fill(totals.copy_out, *sums.mutable_compute_output());
  return wire;
}

inference::RepositoryIndexResponse IndexOf(const std::vector<Model>& models, bool only_ready) {
  inference::RepositoryIndexResponse response;
  for (const Model& model : models) {
    const absl::Status status = CheckServes(model);
    if (only_ready && !status.ok()) continue;
    auto& wire = *response.add_models();
    wire.set_name(model.name);
    wire.set_version(std::string(kModelVersion));
    wire.set_state(status.ok() ? "READY" : "UNAVAILABLE");
    wire.set_reason(std::string(status.message()));
  }
  return response;
}

}  // namespace gemmd
