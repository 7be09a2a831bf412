// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/models.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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

// Writes an input or the output of a configuration.
template <typename Tensor>
void Fill(std::string_view name, ElementType type, const std::vector<int64_t>& shape,
          Tensor& wire) {
  wire.set_name(std::string(name));
  wire.set_data_type(ConfigDatatypeOf(type));
  wire.mutable_dims()->Assign(shape.begin(), shape.end());
}

// Writes the same in metadata.
template <typename Tensor>
void Fill(const Tensor& configured, ModelMetadataResponse::TensorMetadata& wire) {
  constexpr size_t kPrefixBytes = std::string_view("TYPE_").size();
  wire.set_name(configured.name());
  wire.set_datatype(inference::DataType_Name(configured.data_type()).substr(kPrefixBytes));
  *wire.mutable_shape() = configured.dims();
}

void Fill(const DurationSum& sum, inference::StatisticDuration& wire) {
  wire.set_count(static_cast<uint64_t>(sum.count));
  wire.set_ns(static_cast<uint64_t>(sum.ns));
}

// The product takes any types, but metadata can name only one.
void FillGemm(inference::ModelConfig& wire) {
  const std::vector<int64_t> any = {kAny, kAny};
  Fill("A", ElementType::kF32, any, *wire.add_input());
  Fill("B", ElementType::kF32, any, *wire.add_input());
  Fill("D", ElementType::kF32, any, *wire.add_output());
}

void FillTensor(const TensorSpec& spec, inference::ModelConfig& wire) {
  const MatrixLayout& b = spec.layout;
  // For an A of the same type as B.
  const ElementType d_type = DefaultAccumulation(b.type, b.type).value_or(ElementType::kF32);
  std::vector<int64_t> batch;
  if (spec.matrices != 1) batch = {spec.matrices};
  const auto shape = [&batch](int64_t columns) {
    std::vector<int64_t> all = batch;
    all.insert(all.end(), {kAny, columns});
    return all;
  };
  Fill("A", b.type, shape(RowExtent(b.type, b.rows)), *wire.add_input());
  Fill("D", d_type, shape(b.columns), *wire.add_output());
}

// Optional inputs are a property and not in the list of inputs, which would make them required:
// metadata cannot mark them optional, and perf_analyzer rejects an input of the configuration that
// is not in the metadata.
std::string_view OptionalInputsOf(const Model& model) {
  if (model.b == nullptr) return "C,BIAS,A_SCALE,B_SCALE";
  return BitsOf(model.b->spec.layout.type) == 8 ? "C,BIAS,A_SCALE" : "C,BIAS";
}

}  // namespace

inference::ModelConfigResponse ConfigOf(const Model& model) {
  inference::ModelConfigResponse response;
  inference::ModelConfig& wire = *response.mutable_config();
  wire.set_name(model.name);
  wire.set_platform(kPlatform);
  wire.set_backend(kPlatform);
  model.b == nullptr ? FillGemm(wire) : FillTensor(model.b->spec, wire);
  auto& properties = *wire.mutable_parameters();
  properties["optional_inputs"].set_string_value(std::string(OptionalInputsOf(model)));
  if (model.b != nullptr) {
    properties["type"].set_string_value(std::string(NameOf(model.b->spec.layout.type)));
  }
  return response;
}

ModelMetadataResponse MetadataOf(const Model& model) {
  const inference::ModelConfigResponse response = ConfigOf(model);
  const inference::ModelConfig& config = response.config();
  ModelMetadataResponse wire;
  wire.set_name(config.name());
  wire.add_versions(std::string(kModelVersion));
  wire.set_platform(config.platform());
  for (const auto& input : config.input()) Fill(input, *wire.add_inputs());
  Fill(config.output(0), *wire.add_outputs());
  for (const auto& [name, value] : config.parameters()) {
    (*wire.mutable_properties())[name] = value.string_value();
  }
  return wire;
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
