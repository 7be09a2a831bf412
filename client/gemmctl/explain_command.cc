// SPDX-License-Identifier: Apache-2.0
//
// gemmctl explain.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/explanation.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/model_plan.h"
#include "client/gemmctl/model_report.h"
#include "client/gemmctl/product_flags.h"
#include "client/gemmctl/product_input.h"
#include "client/gemmctl/tensor_session.h"
#include "client/matrix/safetensors.h"
#include "client/terminal/option.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

constexpr char kExplainHelp[] =
    "Of a model, each matrix N x K is the weights of a layer with K inputs and N outputs, as "
    "PyTorch's Linear keeps them. For each type of activations and weights, the predicted time is "
    "that of multiplying M activations by it, and the error what the weights change by (root mean "
    "square, relative): 8-bit types have a factor for each output. The best type is the fastest "
    "one whose error is at most --max-error.\n\n"
    "Examples:\n"
    "  gemmctl explain --random 4095,4097,4093 --type bf16\n"
    "  gemmctl explain A.npy B.npy --deterministic\n"
    "  gemmctl explain --random 1,4096,4096 --type s8 --output-type s8 --json\n"
    "  gemmctl explain --model model.safetensors --rows 16   The best type of each layer";

struct ExplainFlags {
  ProductFlags product;
  bool all = false;   // Every kernel on a line of its own.
  std::string model;  // A .safetensors file, each of whose layers is explained; empty: one product.
  int64_t rows = 1;   // What the activations have, for a model.
  double max_error = 0.05;
};

// The types that a layer may have, in the order in which they are shown.
constexpr v1::ElementType kLayerTypes[] = {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_BF16,
                                           v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_E4M3,
                                           v1::ELEMENT_TYPE_S8};

// The product of a layer, with the rest as the flags say.
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
  const auto plan = PlanModel(*file, types, flags.max_error,
                              [&](v1::ElementType type, int64_t outputs,
                                  int64_t inputs) -> absl::StatusOr<v1::ExplainResponse> {
                                const auto request =
                                    ProductRequest(LayerFlags(flags, type, outputs, inputs), false,
                                                   console, &*client);
                                if (!request.ok()) return request.status();
                                return client->Explain(*request);
                              });
  if (!plan.ok()) return FailCall(console, plan.status());
  if (!global.json) {
    console.Print(ModelText(*plan));
    return ExitCode::kOk;
  }
  for (const ModelLayer& layer : plan->layers) console.Print(JsonLine(LayerJson(layer)));
  return ExitCode::kOk;
}

ExitCode RunExplain(const GlobalFlags& global, const ExplainFlags& flags, const Console& console) {
  if (!flags.model.empty()) return ExplainModel(global, flags, console);
  auto client =
      NamesTensors(flags.product) ? ConnectSession(global, false, console) : Connect(global);
  if (!client.ok()) return FailSession(console, client.status());
  const auto request = ProductRequest(flags.product, false, console, &*client);
  if (!request.ok()) return FailLocally(console, request.status());
  const auto explanation = client->Explain(*request);
  if (!explanation.ok()) return FailCall(console, explanation.status());
  console.Print(global.json ? JsonLine(MessageJson(*explanation))
                            : ExplanationTable(*request, *explanation, flags.all));
  return ExitCode::kOk;
}

CommandRun AddExplain(CLI::App& app) {
  auto flags = std::make_unique<ExplainFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kExplainHelp));
  AddProductFlags(app, flags->product);
  AddFlag(app, "--all", flags->all, "Print every candidate and every refused kernel, one a line")
      .Group("Output");
  const CommandOption model =
      AddOption(app, "--model", flags->model,
                "Explain each layer of this .safetensors file instead of one product: its best "
                "type, predicted time and error")
          .TypeName("FILE")
          .Group("Model");
  AddOption(app, "--rows", flags->rows, "Rows of the activations that each layer multiplies", 1)
      .ShowDefault()
      .Need(model)
      .TypeName("M")
      .Group("Model");
  AddOption(app, "--max-error", flags->max_error,
            "Largest error of weights that the best type of a layer may have", 0)
      .ShowDefault()
      .Need(model)
      .TypeName("E")
      .Group("Model");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunExplain(global, *flags, console);
  };
}

}  // namespace

constexpr Command kExplainCommand = {
    "explain", "Show which kernel would run a product, and why not the others", AddExplain};

}  // namespace gemmd
