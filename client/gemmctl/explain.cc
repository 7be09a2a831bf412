// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/product_flags.h"
#include "client/gemmctl/tensor_session.h"
#include "client/matrix/safetensors.h"
#include "client/operand_size.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/element_type.h"
#include "gemmd/prepare.h"
#include "kernels/matrix/status.h"
#include "nlohmann/json.hpp"

namespace gemmd {
namespace {

// One type for the weights and the activations of a layer.
struct LayerType {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  // Root mean square of the rounding errors of the weights, relative to that of the weights; NaN if
  // they have no finite values in the type.
  double error = 0;
  std::string device = {};
  std::string kernel = {};  // Empty: no kernel can run it.
  int64_t predicted_ns = 0;
};

// A matrix of the file, N x K: the weights of K inputs and N outputs.
struct ModelLayer {
  std::string name = {};
  v1::ElementType file_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::vector<LayerType> types = {};  // In the order requested.
  int best = -1;  // Index of the fastest type whose error is small enough; -1: none.
};

// Asks how the server would multiply m x K activations by the transposed N x K weights. Errors:
// Unimplemented if no kernel can.
using ExplainLayer = absl::FunctionRef<absl::StatusOr<v1::ExplainResponse>(
    v1::ElementType type, int64_t outputs, int64_t inputs)>;

using Align = TextTable::Align;

constexpr int kShownCandidates = 10;

std::string ProductText(const v1::MultiplyRequest& request) {
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  return absl::StrCat(batch == 1 ? "" : absl::StrCat(batch, " of "), request.m(), " x ",
                      request.n(), " x ", request.k(), ", ", ElementTypeName(request.a().type()),
                      request.a().sparsity() == v1::SPARSITY_NONE ? "" : " 2:4", " x ",
                      ElementTypeName(request.b().type()));
}

std::string Candidates(const v1::ExplainResponse& explanation, bool is_complete) {
  if (explanation.candidates().empty()) return "No kernel can run it.\n";
  TextTable table({{"kernel"}, {"predicted", Align::kRight}, {"rate", Align::kRight}, {"why"}});
  const int count = explanation.candidates_size();
  const int shown = is_complete ? count : std::min(count, kShownCandidates);
  for (int i = 0; i < shown; ++i) {
    const v1::Candidate& candidate = explanation.candidates(i);
    table.AddRow({candidate.kernel(), FormatNanoseconds(candidate.predicted_ns()),
                  FormatOperationRate(explanation.operations(), candidate.predicted_ns()),
                  candidate.reason()});
  }
  if (shown == count) return table.Print();
  return absl::StrCat(table.Print(), "and ", FormatCount(count - shown),
                      " more (--all shows them)\n");
}

std::string EveryRefusal(const v1::ExplainResponse& explanation) {
  TextTable table({{"refused"}, {"why"}});
  for (const v1::Refusal& refusal : explanation.refusals()) {
    table.AddRow({refusal.kernel(), refusal.reason()});
  }
  return table.Print();
}

// One line for each reason, in the order of the first kernel that has it.
std::string RefusalsByReason(const v1::ExplainResponse& explanation) {
  // The first refusal for each reason, and their number.
  std::vector<std::pair<const v1::Refusal*, int64_t>> groups;
  std::map<std::string, size_t> group_of;
  for (const v1::Refusal& refusal : explanation.refusals()) {
    const auto [found, is_new] = group_of.try_emplace(refusal.reason(), groups.size());
    if (is_new) groups.emplace_back(&refusal, 0);
    ++groups[found->second].second;
  }
  TextTable table({{"refused", Align::kRight}, {"why"}, {"for example"}});
  for (const auto& [first, count] : groups) {
    table.AddRow({FormatCount(count), first->reason(), first->kernel()});
  }
  return absl::StrCat(table.Print(), FormatCount(explanation.refusals_size()),
                      " kernels refused (--all shows each)\n");
}

}  // namespace

std::string ExplanationTable(const v1::MultiplyRequest& request,
                             const v1::ExplainResponse& explanation, bool is_complete) {
  const std::string text = absl::StrCat(
      "device   ", explanation.device(), "\n", "product  ", ProductText(request), ", ",
      FormatCount(explanation.operations()), " operations\n", "bytes    ",
      FormatBytes(explanation.bytes_read()), " read, ", FormatBytes(explanation.bytes_written()),
      " written, ", FormatBytes(explanation.workspace_bytes()), " of workspace\n",
      explanation.recipe().empty() ? "" : absl::StrCat("recipe   ", explanation.recipe(), "\n"),
      explanation.bits_may_vary()
          ? "bits     may depend on the products that run as one with it (--deterministic: never)\n"
          : "",
      "\n", Candidates(explanation, is_complete));
  if (explanation.refusals().empty()) return text;
  return absl::StrCat(text, "\n",
                      is_complete ? EveryRefusal(explanation) : RefusalsByReason(explanation));
}

namespace {

// Elements whose error is computed at once: 4 MiB as floats.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

// Whether a model's weights may have this type.
bool IsWeightType(v1::ElementType type) {
  return type == v1::ELEMENT_TYPE_F64 || type == v1::ELEMENT_TYPE_F32 ||
         type == v1::ELEMENT_TYPE_F16 || type == v1::ELEMENT_TYPE_BF16 ||
         type == v1::ELEMENT_TYPE_E4M3 || type == v1::ELEMENT_TYPE_E5M2;
}

bool HasFactors(v1::ElementType type) { return ElementBits(type) == 8; }

// The values after conversion to the type.
absl::StatusOr<std::vector<float>> ValuesIn(std::span<const float> values, int64_t rows,
                                            int64_t columns, v1::ElementType type) {
  ASSIGN_OR_RETURN(auto stored, HasFactors(type)
                                    ? Quantize(values, rows, columns, type, ScalePer::kRow)
                                    : Encode(values, rows, columns, type));
  const std::vector<float> factors = std::exchange(stored.scale, {});
  auto decoded = Decode(stored.view());
  if (!decoded.ok() || factors.empty()) return decoded;
  for (size_t i = 0; i < decoded->size(); ++i) {
    (*decoded)[i] *= factors[i / static_cast<size_t>(columns)];
  }
  return decoded;
}

absl::Status AddPart(const MatrixView& part, v1::ElementType type, double& changes,
                     double& squares) {
  ASSIGN_OR_RETURN(const auto values, Decode(part));
  const auto stored = ValuesIn(values, part.rows, part.columns, type);
  if (!stored.ok()) {
    // No factor represents infinities, NaN, or negative values of an unsigned type.
    changes = std::numeric_limits<double>::quiet_NaN();
    return absl::OkStatus();
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    const double change = static_cast<double>((*stored)[i]) - value;
    changes += change * change;
    squares += value * value;
  }
  return absl::OkStatus();
}

// How the server would run one layer in a type.
absl::StatusOr<LayerType> ChoiceOf(v1::ElementType type, int64_t outputs, int64_t inputs,
                                   ExplainLayer explain) {
  LayerType layer = {.type = type};
  const auto explanation = explain(type, outputs, inputs);
  if (!explanation.ok() && !absl::IsUnimplemented(explanation.status())) {
    return explanation.status();
  }
  if (explanation.ok() && !explanation->candidates().empty()) {
    layer.device = explanation->device();
    layer.kernel = explanation->candidates(0).kernel();
    layer.predicted_ns = explanation->candidates(0).predicted_ns();
  }
  return layer;
}

// The fastest type whose error is small enough; of equally fast types, the most accurate.
int BestOf(const std::vector<LayerType>& types, double max_error) {
  int best = -1;
  for (size_t i = 0; i < types.size(); ++i) {
    const LayerType& type = types[i];
    if (type.kernel.empty() || !(type.error <= max_error)) continue;
    const auto cost = [](const LayerType& one) { return std::tuple(one.predicted_ns, one.error); };
    if (best < 0 || cost(type) < cost(types[static_cast<size_t>(best)])) best = static_cast<int>(i);
  }
  return best;
}

}  // namespace

absl::StatusOr<double> WeightError(const MatrixView& weights, v1::ElementType type) {
  RETURN_IF_ERROR(CheckOperandBytes("weights", "rows*columns", ShapeOf(weights),
                                    static_cast<int64_t>(weights.data.size())));
  const int64_t line_bytes = PackedLineBytes(weights.type, weights.columns).value_or(0);
  if (weights.columns == 0) return 0;
  const int64_t max_rows = std::max<int64_t>(1, kElementsAtOnce / weights.columns);
  double changes = 0;  // Sums of squares.
  double squares = 0;
  for (int64_t row = 0; row < weights.rows; row += max_rows) {
    MatrixView part = weights;
    part.rows = std::min(max_rows, weights.rows - row);
    part.data = weights.data.subspan(static_cast<size_t>(row * line_bytes),
                                     static_cast<size_t>(part.rows * line_bytes));
    RETURN_IF_ERROR(AddPart(part, type, changes, squares));
    if (std::isnan(changes)) return changes;
  }
  return changes == 0 ? 0 : std::sqrt(changes / squares);
}

namespace {

// Asks for each shape once. Errors: those of a malformed file, and those of `explain` except
// Unimplemented.
absl::StatusOr<std::vector<ModelLayer>> PlanModel(const MappedSafetensors& file,
                                                  const std::vector<v1::ElementType>& types,
                                                  double max_error, ExplainLayer explain) {
  std::vector<ModelLayer> layers;
  std::map<std::tuple<v1::ElementType, int64_t, int64_t>, LayerType> known;
  for (const SafetensorsEntry& entry : file.header().tensors) {
    const v1::ElementType file_type = TypeOfSafetensors(entry.type);
    if (entry.shape.size() != 2 || entry.bytes() == 0 || !IsWeightType(file_type)) continue;
    ModelLayer layer = {.name = entry.name,
                        .file_type = file_type,
                        .outputs = entry.shape[0],
                        .inputs = entry.shape[1]};
    const absl::string_view bytes = file.BytesOf(entry);
    const MatrixView weights =
        PackedView(file_type, std::as_bytes(std::span(bytes.data(), bytes.size())), layer.outputs,
                   layer.inputs);
    for (const v1::ElementType type : types) {
      auto [found, is_new] = known.try_emplace({type, layer.outputs, layer.inputs});
      if (is_new) {
        ASSIGN_OR_RETURN(found->second, ChoiceOf(type, layer.outputs, layer.inputs, explain));
      }
      LayerType choice = found->second;
      const auto error = WeightError(weights, type);
      if (!error.ok()) return Prefixed(entry.name, error.status());
      choice.error = *error;
      layer.types.push_back(std::move(choice));
    }
    layer.best = BestOf(layer.types, max_error);
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::string ErrorText(double error) {
  return std::isfinite(error) ? absl::StrFormat("%.2g", error) : "not finite";
}

// "bf16 12.3 us 0.0017".
std::string ChoiceText(const LayerType& choice) {
  const std::string time =
      choice.kernel.empty() ? "no kernel" : FormatNanoseconds(choice.predicted_ns);
  return absl::StrCat(TypeText(choice.type), " ", time, " ", ErrorText(choice.error));
}

// A line for each layer: its best type, its predicted time and error there, and the other types.
std::string ModelText(const std::vector<ModelLayer>& layers, size_t others_count) {
  TextTable table({{"layer"},
                   {"n x k", Align::kRight},
                   {"file"},
                   {"best"},
                   {"predicted", Align::kRight},
                   {"error", Align::kRight},
                   {"others: type, predicted, error"}});
  int64_t sum_ns = 0;
  int64_t without = 0;
  for (const ModelLayer& layer : layers) {
    std::string others;
    for (size_t i = 0; i < layer.types.size(); ++i) {
      if (static_cast<int>(i) == layer.best) continue;
      absl::StrAppend(&others, others.empty() ? "" : ", ", ChoiceText(layer.types[i]));
    }
    std::vector<std::string> cells = {layer.name, absl::StrCat(layer.outputs, " x ", layer.inputs),
                                      TypeText(layer.file_type)};
    if (layer.best < 0) {
      ++without;
      cells.insert(cells.end(), {"none", "", ""});
    } else {
      const LayerType& best = layer.types[static_cast<size_t>(layer.best)];
      sum_ns += best.predicted_ns;
      cells.insert(cells.end(), {TypeText(best.type), FormatNanoseconds(best.predicted_ns),
                                 ErrorText(best.error)});
    }
    cells.push_back(std::move(others));
    table.AddRow(std::move(cells));
  }
  std::string text = absl::StrCat(table.Print(), "\n", FormatCount(layers.size()),
                                  layers.size() == 1 ? " layer, " : " layers, ",
                                  FormatNanoseconds(sum_ns), " with the best types");
  if (without > 0) absl::StrAppend(&text, "; ", FormatCount(without), " have none");
  if (others_count > 0) {
    absl::StrAppend(&text, "; ", FormatCount(static_cast<int64_t>(others_count)),
                    " other tensors left out");
  }
  return text + "\n";
}

// One layer.
nlohmann::ordered_json LayerJson(const ModelLayer& layer) {
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const LayerType& choice : layer.types) {
    nlohmann::ordered_json json = {{"type", TypeText(choice.type)},
                                   {"error", NumberJson(choice.error)}};
    if (!choice.kernel.empty()) {
      json["predicted_ns"] = choice.predicted_ns;
      json["device"] = choice.device;
      json["kernel"] = choice.kernel;
    }
    types.push_back(std::move(json));
  }
  nlohmann::ordered_json json = {{"layer", layer.name}, {"n", layer.outputs},
                                 {"k", layer.inputs},   {"file_type", TypeText(layer.file_type)},
                                 {"best", nullptr},     {"types", std::move(types)}};
  if (layer.best >= 0) json["best"] = TypeText(layer.types[static_cast<size_t>(layer.best)].type);
  return json;
}

constexpr char kExplainHelp[] =
    "With --model, each N x K matrix holds the weights of a layer with K inputs and N outputs, as "
    "in PyTorch's Linear. For each type of activations and weights, the predicted time is that of "
    "multiplying --rows activations by the weights, and the error is the relative change of the "
    "weights (root mean square); 8-bit types have one factor per output. The best type is the "
    "fastest one whose error is at most --max-error.\n\n"
    "Examples:\n"
    "  gemmctl explain --random 4095,4097,4093 --type bf16\n"
    "  gemmctl explain A.npy B.npy --deterministic\n"
    "  gemmctl explain --random 1,4096,4096 --type s8 --output-type s8 --json\n"
    "  gemmctl explain --model model.safetensors --rows 16   The best type of each layer";

struct ExplainFlags {
  ProductFlags product;
  bool all = false;   // Each kernel has its own line.
  std::string model;  // A .safetensors file: explain each of its layers. Empty: one product.
  int64_t rows = 1;   // Rows of the activations, for a model.
  double max_error = 0.05;
};

// The types that a layer may have, in the order in which they are shown.
constexpr v1::ElementType kLayerTypes[] = {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_BF16,
                                           v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_E4M3,
                                           v1::ELEMENT_TYPE_S8};

// Flags for the product of a layer; the rest as in `flags`.
ProductFlags LayerFlags(const ExplainFlags& flags, v1::ElementType type, int64_t outputs,
                        int64_t inputs) {
  ProductFlags layer = flags.product;
  layer.random = {flags.rows, outputs, inputs};
  layer.type = std::string(ElementTypeName(type));
  layer.transpose_b = true;
  if (ElementBits(type) == 8) {
    layer.a_scale.assign(1, '1');
    layer.b_scale = layer.a_scale;
  }
  if (layer.output_type.empty()) layer.output_type = "f32";
  return layer;
}

absl::Status CheckModelFlags(const ExplainFlags& flags) {
  const ProductFlags& product = flags.product;
  const bool has_operands =
      !product.a_path.empty() || !product.random.empty() || !product.a_type.empty() ||
      !product.b_type.empty() || !product.a_scale.empty() || !product.b_scale.empty() ||
      !product.c_path.empty() || !product.bias_path.empty() || product.sparse_a || flags.all;
  if (!has_operands) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--model: got operands or --all too, want neither: the file's layers are the operands");
}

ExitCode ExplainModel(const GlobalFlags& global, const ExplainFlags& flags,
                      const Console& console) {
  if (absl::Status status = CheckModelFlags(flags); !status.ok()) {
    return FailLocally(console, status);
  }
  const auto file = MappedSafetensors::Open(flags.model);
  if (!file.ok()) return FailLocally(console, file.status());
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  std::vector<v1::ElementType> types(std::begin(kLayerTypes), std::end(kLayerTypes));
  if (const auto type = ParseElementType(flags.product.type)) types = {*type};
  const auto layers = PlanModel(
      *file, types, flags.max_error,
      [&](v1::ElementType type, int64_t outputs,
          int64_t inputs) -> absl::StatusOr<v1::ExplainResponse> {
        ASSIGN_OR_RETURN(
            const auto request,
            ProductRequest(LayerFlags(flags, type, outputs, inputs), false, console, &*client));
        return client->Explain(request);
      });
  if (!layers.ok()) return FailCall(console, layers.status());
  if (!global.json) {
    console.Print(ModelText(*layers, file->header().tensors.size() - layers->size()));
    return ExitCode::kOk;
  }
  for (const ModelLayer& layer : *layers) console.Print(JsonLine(LayerJson(layer)));
  return ExitCode::kOk;
}

ExitCode RunExplain(const GlobalFlags& global, const ExplainFlags& flags, const Console& console) {
  if (!flags.model.empty()) return ExplainModel(global, flags, console);
  auto client = ConnectFor(global, flags.product, console);
  if (!client.ok()) return FailSession(console, client.status());
  const auto request = ProductRequest(flags.product, false, console, &*client);
  if (!request.ok()) return FailLocally(console, request.status());
  const auto explanation = client->Explain(*request);
  if (!explanation.ok()) return FailCall(console, explanation.status());
  console.Print(global.json ? JsonLine(MessageJson(*explanation))
                            : ExplanationTable(*request, *explanation, flags.all));
  return ExitCode::kOk;
}

}  // namespace

CommandRun AddExplain(CLI::App& app) {
  auto flags = std::make_unique<ExplainFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kExplainHelp));
  AddProductFlags(app, flags->product);
  SetGroup(app, "Output");
  AddFlag(app, "--all", flags->all, "Print every candidate and every refused kernel, one per line");
  SetGroup(app, "Model");
  const CommandOption model =
      AddOption(app, "--model", flags->model,
                "Explain each layer of this .safetensors file instead of one product: its best "
                "type, predicted time and error")
          .TypeName("FILE");
  AddOption(app, "--rows", flags->rows, "Rows of the activations that each layer multiplies", 1)
      .ShowDefault()
      .Need(model)
      .TypeName("M");
  AddOption(app, "--max-error", flags->max_error,
            "Largest error of weights that the best type of a layer may have", 0)
      .ShowDefault()
      .Need(model)
      .TypeName("E");
  return RunWith(std::move(flags), RunExplain);
}

}  // namespace gemmd
