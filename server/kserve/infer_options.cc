// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_options.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/kserve/datatype.h"
#include "server/kserve/parameters.h"
#include "server/wire/convert_operand.h"

namespace gemmd {
namespace {

// Priorities of Triton: 1 is the first, 0 the default.
constexpr int64_t kLastNormalPriority = 1;

// The value of an enumeration whose names are PREFIX_NAME: "gelu_erf" of ACTIVATION_GELU_ERF. Those
// that are unspecified are no names.
template <typename Enum>
absl::StatusOr<std::optional<Enum>> Choice(const Parameters& parameters, std::string_view name,
                                           std::string_view prefix, std::string_view want,
                                           bool (*parse)(google::protobuf::ConstStringParam,
                                                         Enum*)) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, parameters.Text(name));
  if (!text) return std::optional<Enum>();
  Enum value;
  const bool is_lower = std::none_of(text->begin(), text->end(), [](char c) {
    return absl::ascii_isupper(static_cast<unsigned char>(c));
  });
  if (is_lower && *text != "unspecified" &&
      parse(Concat(prefix, absl::AsciiStrToUpper(*text)), &value)) {
    return std::optional<Enum>(value);
  }
  return absl::InvalidArgumentError(GotWant(parameters.FieldOf(name), Shown(*text), want));
}

absl::Status ReadTypes(const Parameters& parameters, v1::MultiplyRequest& product) {
  ASSIGN_OR_RETURN(const std::optional<std::string> output, parameters.Text("output_type"));
  if (output) {
    ASSIGN_OR_RETURN(const ElementType type,
                     ParseTypeName(parameters.FieldOf("output_type"), *output));
    product.mutable_d()->set_type(ToWire(type));
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> accumulation,
                   parameters.Text("accumulation_type"));
  if (accumulation) {
    ASSIGN_OR_RETURN(const ElementType type,
                     ParseTypeName(parameters.FieldOf("accumulation_type"), *accumulation));
    product.set_accumulation_type(ToWire(type));
  }
  return absl::OkStatus();
}

absl::Status ReadChoices(const Parameters& parameters, v1::MultiplyRequest& product,
                         InferOptions& options) {
  ASSIGN_OR_RETURN(
      const auto activation,
      Choice<v1::Activation>(parameters, "activation", "ACTIVATION_",
                             "none, relu, gelu_erf, gelu_tanh or silu", v1::Activation_Parse));
  if (activation) product.set_activation(*activation);
  ASSIGN_OR_RETURN(const auto operation,
                   Choice<v1::BitOperation>(parameters, "bit_operation", "BIT_OPERATION_",
                                            "and or xor", v1::BitOperation_Parse));
  if (operation) product.set_bit_operation(*operation);
  ASSIGN_OR_RETURN(const auto axis, Choice<v1::BiasAxis>(parameters, "bias_axis", "BIAS_AXIS_",
                                                         "columns or rows", v1::BiasAxis_Parse));
  if (axis) options.bias_axis = *axis;
  return absl::OkStatus();
}

absl::Status ReadScalars(const Parameters& parameters, v1::MultiplyRequest& product,
                         InferOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<double> alpha, parameters.Number("alpha"));
  if (alpha) product.set_alpha(*alpha);
  ASSIGN_OR_RETURN(const std::optional<double> beta, parameters.Number("beta"));
  if (beta) product.set_beta(*beta);
  options.has_beta = beta.has_value();
  ASSIGN_OR_RETURN(options.transpose_a, parameters.Flag("transpose_a"));
  ASSIGN_OR_RETURN(options.transpose_b, parameters.Flag("transpose_b"));
  ASSIGN_OR_RETURN(options.transpose_c, parameters.Flag("transpose_c"));
  return absl::OkStatus();
}

// How it is computed, and when.
absl::Status ReadConditions(const Parameters& parameters, v1::MultiplyRequest& product,
                            InferOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<std::string> kernel, parameters.Text("kernel"));
  if (kernel) product.set_kernel(*kernel);
  ASSIGN_OR_RETURN(const std::optional<std::string> device, parameters.Text("device"));
  if (device) product.set_device(*device);
  ASSIGN_OR_RETURN(const bool deterministic, parameters.Flag("require_deterministic"));
  product.set_require_deterministic(deterministic);
  ASSIGN_OR_RETURN(const bool invariant, parameters.Flag("require_batch_invariant"));
  product.set_require_batch_invariant(invariant);
  ASSIGN_OR_RETURN(const bool is_fast, parameters.Flag("fast_accumulation"));
  product.set_fast_accumulation(is_fast);
  ASSIGN_OR_RETURN(const std::optional<int64_t> priority, parameters.Count("priority"));
  if (priority.value_or(0) > kLastNormalPriority) product.set_priority(v1::PRIORITY_LOW);
  ASSIGN_OR_RETURN(const std::optional<int64_t> timeout_us, parameters.Count("timeout"));
  constexpr int64_t kMostUs = std::numeric_limits<int64_t>::max() / 1000;
  options.timeout_ns = std::min(timeout_us.value_or(0), kMostUs) * 1000;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InferOptions> ReadOptions(const inference::ModelInferRequest& request,
                                         v1::MultiplyRequest& product) {
  const Parameters parameters("parameters", request.parameters());
  RETURN_IF_ERROR(parameters.CheckNames({"alpha",
                                         "beta",
                                         "transpose_a",
                                         "transpose_b",
                                         "transpose_c",
                                         "activation",
                                         "bias_axis",
                                         "bit_operation",
                                         "kernel",
                                         "device",
                                         "output_type",
                                         "accumulation_type",
                                         "fast_accumulation",
                                         "require_deterministic",
                                         "require_batch_invariant",
                                         "priority",
                                         "timeout",
                                         "triton_enable_empty_final_response",
                                         "headers",
                                         "binary_data_output"}));
  InferOptions options;
  RETURN_IF_ERROR(ReadScalars(parameters, product, options));
  RETURN_IF_ERROR(ReadTypes(parameters, product));
  RETURN_IF_ERROR(ReadChoices(parameters, product, options));
  RETURN_IF_ERROR(ReadConditions(parameters, product, options));
  return options;
}

}  // namespace gemmd
