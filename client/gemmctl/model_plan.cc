// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/model_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "gemmd/element_type.h"
#include "gemmd/prepare.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

// Elements whose error is computed at once: 4 MiB as floats.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

// Those of which a model's weights consist.
bool IsWeightType(v1::ElementType type) {
  return type == v1::ELEMENT_TYPE_F64 || type == v1::ELEMENT_TYPE_F32 ||
         type == v1::ELEMENT_TYPE_F16 || type == v1::ELEMENT_TYPE_BF16 ||
         type == v1::ELEMENT_TYPE_E4M3 || type == v1::ELEMENT_TYPE_E5M2;
}

bool HasFactors(v1::ElementType type) { return ElementBits(type) == 8; }

// The values as the type would have them.
absl::StatusOr<std::vector<float>> ValuesIn(std::span<const float> values, int64_t rows,
                                            int64_t columns, v1::ElementType type) {
  auto stored = HasFactors(type) ? Quantize(values, rows, columns, type, ScalePer::kRow)
                                 : Encode(values, rows, columns, type);
  if (!stored.ok()) return stored.status();
  const std::vector<float> factors = std::exchange(stored->scale, {});
  auto decoded = Decode(stored->view());
  if (!decoded.ok() || factors.empty()) return decoded;
  for (size_t i = 0; i < decoded->size(); ++i) {
    (*decoded)[i] *= factors[i / static_cast<size_t>(columns)];
  }
  return decoded;
}

struct Squares {
  double changes = 0;
  double values = 0;
};

absl::Status AddPart(const MatrixView& part, v1::ElementType type, Squares& sum) {
  const auto values = Decode(part);
  if (!values.ok()) return values.status();
  const auto stored = ValuesIn(*values, part.rows, part.columns, type);
  if (!stored.ok()) {
    // There is no factor for infinities, NaN and what the type has no sign for.
    sum.changes = std::numeric_limits<double>::quiet_NaN();
    return absl::OkStatus();
  }
  for (size_t i = 0; i < values->size(); ++i) {
    const double value = (*values)[i];
    const double change = static_cast<double>((*stored)[i]) - value;
    sum.changes += change * change;
    sum.values += value * value;
  }
  return absl::OkStatus();
}

// What the server says, asked once for each shape.
class Explanations {
 public:
  explicit Explanations(ExplainLayer explain) : explain_(explain) {}

  absl::StatusOr<LayerType> Of(v1::ElementType type, int64_t outputs, int64_t inputs) {
    const auto key = std::tuple(type, outputs, inputs);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    LayerType layer = {.type = type};
    const auto explanation = explain_(type, outputs, inputs);
    if (!explanation.ok() && !absl::IsUnimplemented(explanation.status())) {
      return explanation.status();
    }
    if (explanation.ok() && !explanation->candidates().empty()) {
      layer.device = explanation->device();
      layer.kernel = explanation->candidates(0).kernel();
      layer.predicted_ns = explanation->candidates(0).predicted_ns();
    }
    return known_.emplace(key, std::move(layer)).first->second;
  }

 private:
  const ExplainLayer explain_;
  std::map<std::tuple<v1::ElementType, int64_t, int64_t>, LayerType> known_;
};

// The fastest type whose error is small enough; of equally fast ones the one that changes less.
int BestOf(const std::vector<LayerType>& types, double most_error) {
  int best = -1;
  for (size_t i = 0; i < types.size(); ++i) {
    const LayerType& type = types[i];
    if (type.kernel.empty() || !(type.error <= most_error)) continue;
    const auto cost = [](const LayerType& one) { return std::tuple(one.predicted_ns, one.error); };
    if (best < 0 || cost(type) < cost(types[static_cast<size_t>(best)])) best = static_cast<int>(i);
  }
  return best;
}

}  // namespace

absl::StatusOr<double> WeightError(const MatrixView& weights, v1::ElementType type) {
  const OperandShape shape = {.type = weights.type,
                              .order = weights.order,
                              .rows = weights.rows,
                              .columns = weights.columns};
  const absl::Status checked = CheckOperandBytes("weights", "rows*columns", shape,
                                                 static_cast<int64_t>(weights.data.size()));
  if (!checked.ok()) return checked;
  const int64_t line_bytes = PackedLineBytes(weights.type, weights.columns).value_or(0);
  if (weights.columns == 0) return 0;
  const int64_t most_rows = std::max<int64_t>(1, kElementsAtOnce / weights.columns);
  Squares sum;
  for (int64_t row = 0; row < weights.rows; row += most_rows) {
    MatrixView part = weights;
    part.rows = std::min(most_rows, weights.rows - row);
    part.data = weights.data.subspan(static_cast<size_t>(row * line_bytes),
                                     static_cast<size_t>(part.rows * line_bytes));
    if (absl::Status status = AddPart(part, type, sum); !status.ok()) return status;
    if (std::isnan(sum.changes)) return sum.changes;
  }
  return sum.changes == 0 ? 0 : std::sqrt(sum.changes / sum.values);
}

absl::StatusOr<ModelPlan> PlanModel(const MappedSafetensors& file,
                                    const std::vector<v1::ElementType>& types, double most_error,
                                    ExplainLayer explain) {
  ModelPlan plan;
  Explanations explanations(explain);
  for (const SafetensorsEntry& entry : file.header().tensors) {
    const v1::ElementType file_type = TypeOfSafetensors(entry.type);
    if (entry.shape.size() != 2 || entry.bytes() == 0 || !IsWeightType(file_type)) {
      ++plan.others;
      continue;
    }
    ModelLayer layer = {.name = entry.name,
                        .file_type = file_type,
                        .outputs = entry.shape[0],
                        .inputs = entry.shape[1]};
    const absl::string_view bytes = file.BytesOf(entry);
    const MatrixView weights =
        PackedView(file_type, std::as_bytes(std::span(bytes.data(), bytes.size())), layer.outputs,
                   layer.inputs);
    for (const v1::ElementType type : types) {
      auto choice = explanations.Of(type, layer.outputs, layer.inputs);
      if (!choice.ok()) return choice.status();
      const auto error = WeightError(weights, type);
      if (!error.ok()) {
        return absl::Status(error.status().code(),
                            absl::StrCat(entry.name, ": ", error.status().message()));
      }
      choice->error = *error;
      layer.types.push_back(*std::move(choice));
    }
    layer.best = BestOf(layer.types, most_error);
    plan.layers.push_back(std::move(layer));
  }
  return plan;
}

}  // namespace gemmd
