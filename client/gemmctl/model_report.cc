// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/model_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/text_table.h"
#include "client/terminal/type_names.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

std::string ErrorText(double error) {
  return std::isfinite(error) ? absl::StrFormat("%.2g", error) : "not finite";
}

// "bf16 12.3 us 0.0017".
std::string ChoiceText(const LayerType& choice) {
  const std::string time =
      choice.kernel.empty() ? "no kernel" : FormatNanoseconds(choice.predicted_ns);
  return absl::StrCat(TypeText(choice.type), " ", time, " ", ErrorText(choice.error));
}

}  // namespace

std::string ModelText(const ModelPlan& plan) {
  TextTable table({{"layer"},
                   {"n x k", Align::kRight},
                   {"file"},
                   {"best"},
                   {"predicted", Align::kRight},
                   {"error", Align::kRight},
                   {"others: type, predicted, error"}});
  int64_t sum_ns = 0;
  int64_t without = 0;
  for (const ModelLayer& layer : plan.layers) {
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
  std::string text = absl::StrCat(table.Print(), "\n", FormatCount(plan.layers.size()),
                                  plan.layers.size() == 1 ? " layer, " : " layers, ",
                                  FormatNanoseconds(sum_ns), " with the best types");
  if (without > 0) absl::StrAppend(&text, "; ", FormatCount(without), " have none");
  if (plan.others > 0) {
    absl::StrAppend(&text, "; ", FormatCount(plan.others), " other tensors left out");
  }
  return text + "\n";
}

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

}  // namespace gemmd
