// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/convert_infer.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kserve/v2/inference.pb.h"
#include "proto/field_start.h"
#include "server/kserve/infer_message.h"
#include "server/wire/convert.h"
#include "server/wire/incoming.h"

namespace gemmd {

namespace {

using Contents = inference::InferTensorContents;

struct Datatype {
  std::string_view name;
  ElementType type;
  inference::DataType config;
  int contents = 0;  // The field of InferTensorContents with its numbers; 0 if there is none.
};

constexpr Datatype kDatatypes[] = {
    {"FP64", ElementType::kF64, inference::TYPE_FP64, Contents::kFp64ContentsFieldNumber},
    {"FP32", ElementType::kF32, inference::TYPE_FP32, Contents::kFp32ContentsFieldNumber},
    {"FP16", ElementType::kF16, inference::TYPE_FP16},
    {"BF16", ElementType::kBf16, inference::TYPE_BF16},
    {"INT8", ElementType::kS8, inference::TYPE_INT8, Contents::kIntContentsFieldNumber},
    {"UINT8", ElementType::kU8, inference::TYPE_UINT8, Contents::kUintContentsFieldNumber},
    {"INT32", ElementType::kS32, inference::TYPE_INT32, Contents::kIntContentsFieldNumber},
};
constexpr std::string_view kWantedDatatypes = "FP64, FP32, FP16, BF16, INT8, UINT8 or INT32";

const Datatype* FindDatatype(std::string_view name) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.name == name) return &datatype;
  }
  return nullptr;
}

const Datatype& CarrierOf(ElementType type) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.type == type) return datatype;
  }
  return *FindDatatype(type == ElementType::kTf32 ? "FP32" : "UINT8");
}

}  // namespace

std::string_view DatatypeOf(ElementType type) { return CarrierOf(type).name; }
inference::DataType ConfigDatatypeOf(ElementType type) { return CarrierOf(type).config; }

int64_t RowExtent(ElementType type, int64_t elements) {
  const int bits = BitsOf(type);
  if (bits >= 8) return elements;
  return elements / 8 * bits + (elements % 8 * bits + 7) / 8;
}

ElementType TypeOfWire(v1::ElementType type) {
  return ParseType("type", type, ElementType::kF32).value_or(ElementType::kF32);
}

absl::StatusOr<ElementType> ParseTypeName(std::string_view field, std::string_view name) {
  if (const std::optional<ElementType> type = ElementTypeFromName(name)) return *type;
  if (const Datatype* const datatype = FindDatatype(name)) return datatype->type;
  return Invalid(field, Shown(name), "an element type such as f16 or e4m3, or a datatype");
}

absl::StatusOr<ElementType> ParseInputType(std::string_view field, std::string_view datatype,
                                           std::string_view name, std::optional<ElementType> own) {
  const Datatype* const known = FindDatatype(datatype);
  if (known == nullptr) {
    return Invalid(Concat(field, ".datatype"), datatype.empty() ? "none" : Shown(datatype),
                   Concat(kWantedDatatypes, ", or UINT8 with a parameter \"type\""));
  }
  if (name.empty()) return own.has_value() && CarrierOf(*own).name == datatype ? *own : known->type;
  ASSIGN_OR_RETURN(const ElementType type, ParseTypeName(Concat(field, ".parameters.type"), name));
  if (CarrierOf(type).name == datatype) return type;
  return Invalid(Concat(field, ".datatype"), Shown(datatype),
                 Concat(CarrierOf(type).name, " for elements of type ", NameOf(type)));
}

namespace {

using google::protobuf::io::CodedInputStream;

int64_t BytesOf(const SliceList& slices) {
  int64_t bytes = 0;
  for (const grpc::Slice& slice : slices) bytes += static_cast<int64_t>(slice.size());
  return bytes;
}

// Removes the bytes before `begin`.
void RemoveBeginning(size_t begin, ReceivedSlices& slices) {
  size_t whole = 0;
  while (whole < slices.size() && slices[whole].size() <= begin) begin -= slices[whole++].size();
  slices.EraseBefore(whole);
  if (begin > 0) slices.front() = slices.front().sub(begin, slices.front().size());
}

// The numbers as bytes of elements. `field` is theirs. Errors: InvalidArgument for a number out of
// the element's range.
template <typename Element, typename Number>
absl::StatusOr<std::string> ElementsOf(std::string_view field,
                                       const google::protobuf::RepeatedField<Number>& numbers) {
  std::string bytes;
  bytes.reserve(static_cast<size_t>(numbers.size()) * sizeof(Element));
  for (int i = 0; i < numbers.size(); ++i) {
    const auto element = static_cast<Element>(numbers[i]);
    if constexpr (!std::is_same_v<Element, Number>) {
      using Range = std::numeric_limits<Element>;
      if (element != numbers[i]) {
        return Invalid(Concat(field, "[", i, "]"), numbers[i],
                       Concat(int{Range::min()}, " to ", int{Range::max()}));
      }
    }
    bytes.append(reinterpret_cast<const char*>(&element), sizeof(element));
  }
  return bytes;
}

}  // namespace

bool StripPackedFloats(std::string_view datatype, ReceivedSlices& contents) {
  if (datatype != "FP32" && datatype != "FP64") return false;
  const int64_t all = BytesOf(contents);
  int begin = 0;
  {
    SliceStream stream(contents, SliceStream::After::kKeep);
    CodedInputStream input(&stream);
    uint32_t bytes = 0;
    if (input.ReadTag() != DelimitedTag(FindDatatype(datatype)->contents) ||
        !input.ReadVarint32(&bytes))
      return false;
    begin = input.CurrentPosition();
    if (begin + int64_t{bytes} != all) return false;
  }
  RemoveBeginning(static_cast<size_t>(begin), contents);
  return true;
}

absl::StatusOr<std::string> DecodeContents(std::string_view field, std::string_view datatype,
                                           ReceivedSlices& contents) {
  const Datatype* const known = FindDatatype(datatype);
  if (known == nullptr || known->contents == 0) {
    return Invalid(Concat(field, ".contents"), "values",
                   Concat("raw_input_contents for ", datatype));
  }
  SliceStream stream(contents, SliceStream::After::kKeep);
  Contents parsed;
  if (!parsed.ParseFromZeroCopyStream(&stream)) return MalformedMessage();
  const std::string_view name = Contents::descriptor()->FindFieldByNumber(known->contents)->name();
  const auto* const reflection = parsed.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> present;
  reflection->ListFields(parsed, &present);
  std::string other = reflection->GetUnknownFields(parsed).empty() ? "" : "an unknown field";
  for (const auto* const one : present) {
    if (one->number() != known->contents) other = std::string(one->name());
  }
  if (!other.empty()) {
    return Invalid(Concat(field, ".contents"), other, Concat(name, " for ", datatype));
  }
  const std::string place = Concat(field, ".contents.", name);
  switch (known->type) {
    case ElementType::kF64: return ElementsOf<double>(place, parsed.fp64_contents());
    case ElementType::kF32: return ElementsOf<float>(place, parsed.fp32_contents());
    case ElementType::kS8: return ElementsOf<int8_t>(place, parsed.int_contents());
    case ElementType::kU8: return ElementsOf<uint8_t>(place, parsed.uint_contents());
    default: return ElementsOf<int32_t>(place, parsed.int_contents());
  }
}

namespace {

// The parameters of a request that are not fields of the product.
struct InferOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool transpose_c = false;
  bool has_beta = false;
  v1::BiasAxis bias_axis = v1::BIAS_AXIS_COLUMNS;
  int64_t timeout_ns = 0;  // 0: none.
};

// Priorities of Triton: 1 is the highest, 0 the default.
constexpr int64_t kLastNormalPriority = 1;

// A parameter that chooses a value of an enumeration whose names are PREFIX_NAME: "gelu_erf" of
// ACTIVATION_GELU_ERF. Unspecified values have no name.
absl::StatusOr<std::optional<int>> Choice(const Parameters& parameters, std::string_view name,
                                          const google::protobuf::EnumDescriptor& values,
                                          std::string_view prefix, std::string_view want) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, parameters.Text(name));
  if (!text) return std::nullopt;
  const auto* const value = values.FindValueByName(Concat(prefix, absl::AsciiStrToUpper(*text)));
  if (value != nullptr && absl::AsciiStrToLower(*text) == *text && *text != "unspecified") {
    return value->number();
  }
  return Invalid(parameters.FieldOf(name), Shown(*text), want);
}

absl::Status ReadChoices(const Parameters& parameters, v1::MultiplyRequest& product,
                         InferOptions& options) {
  ASSIGN_OR_RETURN(const auto activation,
                   Choice(parameters, "activation", *v1::Activation_descriptor(), "ACTIVATION_",
                          "none, relu, gelu_erf, gelu_tanh or silu"));
  if (activation) product.set_activation(static_cast<v1::Activation>(*activation));
  ASSIGN_OR_RETURN(const auto operation,
                   Choice(parameters, "bit_operation", *v1::BitOperation_descriptor(),
                          "BIT_OPERATION_", "and or xor"));
  if (operation) product.set_bit_operation(static_cast<v1::BitOperation>(*operation));
  ASSIGN_OR_RETURN(const auto axis, Choice(parameters, "bias_axis", *v1::BiasAxis_descriptor(),
                                           "BIAS_AXIS_", "columns or rows"));
  if (axis) options.bias_axis = static_cast<v1::BiasAxis>(*axis);
  for (const std::string_view name : {"output_type", "accumulation_type"}) {
    ASSIGN_OR_RETURN(const std::optional<std::string> text, parameters.Text(name));
    if (!text) continue;
    ASSIGN_OR_RETURN(const ElementType type, ParseTypeName(parameters.FieldOf(name), *text));
    if (name == "output_type") {
      product.mutable_d()->set_type(ToWire(type));
    } else {
      product.set_accumulation_type(ToWire(type));
    }
  }
  return absl::OkStatus();
}

// Parameters with the name of a field of the product.
absl::Status ReadFields(const Parameters& parameters, v1::MultiplyRequest& product) {
  const auto* const fields = v1::MultiplyRequest::descriptor();
  const auto* const reflection = product.GetReflection();
  for (const char* const name : {"alpha", "beta"}) {
    ASSIGN_OR_RETURN(const std::optional<double> number, parameters.Number(name));
    if (number) reflection->SetDouble(&product, fields->FindFieldByName(name), *number);
  }
  for (const char* const name : {"kernel", "device"}) {
    ASSIGN_OR_RETURN(std::optional<std::string> text, parameters.Text(name));
    if (text) reflection->SetString(&product, fields->FindFieldByName(name), *std::move(text));
  }
  for (const char* const name :
       {"require_deterministic", "require_batch_invariant", "fast_accumulation"}) {
    ASSIGN_OR_RETURN(const bool is_set, parameters.Flag(name));
    reflection->SetBool(&product, fields->FindFieldByName(name), is_set);
  }
  return absl::OkStatus();
}

// Writes the parameters that are fields of the product into it, and returns the others. Errors:
// InvalidArgument: "parameters.alpha: got a string, want a number".
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
  RETURN_IF_ERROR(ReadFields(parameters, product));
  options.has_beta = request.parameters().contains("beta");
  RETURN_IF_ERROR(ReadChoices(parameters, product, options));
  ASSIGN_OR_RETURN(options.transpose_a, parameters.Flag("transpose_a"));
  ASSIGN_OR_RETURN(options.transpose_b, parameters.Flag("transpose_b"));
  ASSIGN_OR_RETURN(options.transpose_c, parameters.Flag("transpose_c"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> priority, parameters.Count("priority"));
  if (priority.value_or(0) > kLastNormalPriority) product.set_priority(v1::PRIORITY_LOW);
  ASSIGN_OR_RETURN(const std::optional<int64_t> timeout_us, parameters.Count("timeout"));
  constexpr int64_t kMaxUs = std::numeric_limits<int64_t>::max() / 1000;
  options.timeout_ns = std::min(timeout_us.value_or(0), kMaxUs) * 1000;
  return options;
}

// By role.
constexpr std::array<std::string_view, kOperandRoles.size()> kNames = {
    "A", "B", "C", "BIAS", "A_SCALE", "B_SCALE"};

// Fields of a product that are KServe parameters, under the same name or another one.
constexpr std::pair<std::string_view, std::string_view> kParameters[] = {
    {"alpha", "alpha"},
    {"beta", "beta"},
    {"activation", "activation"},
    {"bias.axis", "bias_axis"},
    {"bit_operation", "bit_operation"},
    {"accumulation_type", "accumulation_type"},
    {"d.type", "output_type"},
    {"kernel", "kernel"},
    {"device", "device"},
    {"priority", "priority"},
};

std::string WantedNames(bool has_own_b) {
  return has_own_b ? "one of A, C, BIAS, A_SCALE: the model has its own B"
                   : "one of A, B, C, BIAS, A_SCALE, B_SCALE";
}

std::string_view InputNameOf(OperandRole input) { return kNames[static_cast<size_t>(input)]; }

}  // namespace

absl::StatusOr<InferPlaces> InferPlaces::Find(const inference::ModelInferRequest& request,
                                              bool has_own_b) {
  InferPlaces places;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const std::string& name = request.inputs(i).name();
    const auto known = std::find(kNames.begin(), kNames.end(), name);
    if (known == kNames.end() || (has_own_b && name.starts_with('B') && name != "BIAS")) {
      return Invalid(Concat("inputs[", i, "].name"), name.empty() ? "none" : Shown(name),
                     WantedNames(has_own_b));
    }
    std::optional<int>& place =
        places.places_[kOperandRoles[static_cast<size_t>(known - kNames.begin())]];
    if (place.has_value()) {
      return Invalid(Concat("inputs[", i, "].name"), name,
                     Concat("that of input ", *place, " once"));
    }
    place = i;
  }
  for (const OperandRole input : {OperandRole::kA, OperandRole::kB}) {
    if (places.At(input) || (input == OperandRole::kB && has_own_b)) continue;
    return Invalid("inputs", Concat("no ", InputNameOf(input)), has_own_b ? "A" : "A and B");
  }
  return places;
}

std::string InferPlaces::FieldOf(OperandRole input) const {
  const std::optional<int> place = At(input);
  return place ? Concat("inputs[", *place, "]") : Concat("model.", InputNameOf(input));
}

// The KServe name of "a.data", "a.type" and so on.
std::string InferPlaces::NameOfOperand(OperandRole operand, std::optional<OperandRole> scale,
                                       std::string_view member) const {
  const std::optional<int> place = At(operand);
  if (scale && member.starts_with(".scale")) return FieldOf(*scale) + ".shape";
  if (!place && operand != OperandRole::kB) return Concat("inputs.", InputNameOf(operand));
  if (member == ".data" && place) {
    return is_typed_ ? Concat("inputs[", *place, "].contents")
                     : Concat("raw_input_contents[", *place, "]");
  }
  if (member == ".type") return FieldOf(operand) + ".datatype";
  return member.starts_with(".tensor") ? "model" : FieldOf(operand);
}

std::optional<std::string> InferPlaces::NameOfField(std::string_view field) const {
  for (const auto& [product, parameter] : kParameters) {
    if (field == product) return Concat("parameters.", parameter);
  }
  if (field == "request_id") return "id";
  if (field == "m" || field == "k" || field == "batch") return FieldOf(OperandRole::kA) + ".shape";
  if (field == "n") return FieldOf(OperandRole::kB) + ".shape";
  if (field == "m, n, k") return "inputs";
  const std::string_view matrix = field.substr(0, field.find('.'));
  const std::string_view member = field.substr(matrix.size());
  if (matrix == "a") return NameOfOperand(OperandRole::kA, OperandRole::kAScale, member);
  if (matrix == "b") return NameOfOperand(OperandRole::kB, OperandRole::kBScale, member);
  if (matrix == "c") return NameOfOperand(OperandRole::kC, std::nullopt, member);
  if (matrix == "bias") return NameOfOperand(OperandRole::kBias, std::nullopt, member);
  if (matrix == "d") return "outputs[0]";
  return std::nullopt;
}

absl::Status InferPlaces::Rename(const absl::Status& status) const {
  const std::string_view text(status.message().data(), status.message().size());
  const size_t end = text.find(": ");
  if (status.ok() || end == std::string_view::npos) return status;
  const std::optional<std::string> name = NameOfField(text.substr(0, end));
  if (!name) return status;
  absl::Status renamed(status.code(), Concat(*name, text.substr(end)));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { renamed.SetPayload(url, payload); });
  return renamed;
}

namespace {

using inference::ModelInferRequest;
using WireInput = ModelInferRequest::InferInputTensor;
using Form = InputContents::Form;

// Factors are copied; copying this many takes less than a millisecond.
constexpr int64_t kMaxFactors = int64_t{1} << 20;

std::string TextOf(const google::protobuf::RepeatedField<int64_t>& shape) {
  std::string text = "[";
  constexpr int kMaxShown = 8;
  for (int i = 0; i < shape.size() && i < kMaxShown; ++i) {
    text += Concat(i > 0 ? ", " : "", shape[i]);
  }
  return text + (shape.size() > kMaxShown ? ", ...]" : "]");
}

// Factors are floats in messages of products, so they are copied.
bool IsScale(const WireInput& input) { return input.name().ends_with("_SCALE"); }

std::string Joined(const SliceList& slices) {
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The extents of a matrix as it is stored, columns in elements.
struct Extents {
  std::optional<int64_t> matrices;
  int64_t rows = 0;
  int64_t columns = 0;

  Extents Used(bool is_transposed) const {
    return is_transposed ? Extents{matrices, columns, rows} : *this;
  }
};

class Conversion {
 public:
  Conversion(InferMessage& message, const Model& model, ReceiveQuota& quota,
             v1::MultiplyRequest& product, HeldFields& held)
      : message_(message),
        request_(message.request()),
        model_(model),
        quota_(quota),
        product_(product),
        held_(held) {}

  absl::StatusOr<InferAsked> Run() {
    product_.set_request_id(request_.id());
    ASSIGN_OR_RETURN(asked_.places, InferPlaces::Find(request_, model_.b != nullptr));
    if (!message_.has_raw()) asked_.places.SetTyped();
    RETURN_IF_ERROR(CheckOutputs());
    ASSIGN_OR_RETURN(options_, ReadOptions(request_, product_));
    asked_.timeout_ns = options_.timeout_ns;
    RETURN_IF_ERROR(ReadMatrices());
    if (asked_.places.At(OperandRole::kBias)) RETURN_IF_ERROR(ReadBias());
    RETURN_IF_ERROR(ReadScale(OperandRole::kAScale, product_.m(), *product_.mutable_a()));
    RETURN_IF_ERROR(ReadScale(OperandRole::kBScale, product_.n(), *product_.mutable_b()));
    return std::move(asked_);
  }

 private:
  const WireInput& InputOf(OperandRole input) const {
    return request_.inputs(*asked_.places.At(input));
  }
  InputContents& ContentsOf(OperandRole input) {
    return message_.contents()[static_cast<size_t>(*asked_.places.At(input))];
  }
  std::string FieldOf(OperandRole input) const { return asked_.places.FieldOf(input); }

  absl::Status WrongShape(OperandRole input, std::string_view want) const {
    return Invalid(FieldOf(input) + ".shape", TextOf(InputOf(input).shape()), want);
  }

  absl::Status CheckOutputs() const {
    for (int i = 0; i < request_.outputs_size(); ++i) {
      const auto& output = request_.outputs(i);
      const std::string field = Concat("outputs[", i, "]");
      if (output.name() != "D" || i > 0) {
        return Invalid(field + ".name", output.name().empty() ? "none" : Shown(output.name()),
                       "D, once");
      }
      const std::string parameters = field + ".parameters";
      RETURN_IF_ERROR(Parameters(parameters, output.parameters()).CheckNames({}));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ElementType> ReadType(OperandRole input, std::optional<ElementType> own) const {
    const WireInput& wire = InputOf(input);
    const std::string field = FieldOf(input);
    const std::string parameters_field = field + ".parameters";
    const Parameters parameters(parameters_field, wire.parameters());
    RETURN_IF_ERROR(parameters.CheckNames({"type", "columns"}));
    ASSIGN_OR_RETURN(const std::optional<std::string> name, parameters.Text("type"));
    return ParseInputType(field, wire.datatype(), name.value_or(""), own);
  }

  // The number of elements in a row of an input.
  absl::StatusOr<int64_t> ReadColumns(OperandRole input, ElementType type, int64_t extent) const {
    const std::string field = FieldOf(input) + ".parameters";
    const Parameters parameters(field, InputOf(input).parameters());
    ASSIGN_OR_RETURN(const std::optional<int64_t> columns, parameters.Count("columns"));
    if (columns) {
      if (RowExtent(type, *columns) == extent) return *columns;
      return Invalid(field + ".columns", *columns,
                     Concat("as many elements of type ", gemmd::NameOf(type), " as take ", extent,
                            " of the datatype's values"));
    }
    const int bits = BitsOf(type);
    if (bits >= 8) return extent;
    int64_t all_bits = 0;
    if (__builtin_mul_overflow(extent, 8, &all_bits)) {
      return WrongShape(input, "less than 2^63 bits in a row");
    }
    return all_bits / bits;
  }

  absl::StatusOr<Extents> ReadExtents(OperandRole input, ElementType type) const {
    const auto& shape = InputOf(input).shape();
    for (int i = 0; i < shape.size(); ++i) {
      if (shape[i] < 0) {
        return Invalid(Concat(FieldOf(input), ".shape[", i, "]"), shape[i], "at least 0");
      }
    }
    if (shape.size() != 2 && shape.size() != 3) {
      return WrongShape(input, "[rows, columns] or [batch, rows, columns]");
    }
    Extents extents;
    if (shape.size() == 3) extents.matrices = shape[0];
    extents.rows = shape[shape.size() - 2];
    ASSIGN_OR_RETURN(extents.columns, ReadColumns(input, type, shape[shape.size() - 1]));
    return extents;
  }

  // Type, extents and bytes of one matrix, as it is used.
  absl::StatusOr<Extents> ReadMatrix(OperandRole input, bool is_transposed,
                                     std::optional<ElementType> own, v1::Operand& operand) {
    ASSIGN_OR_RETURN(const ElementType type, ReadType(input, own));
    operand.set_type(ToWire(type));
    operand.set_transpose(is_transposed);
    ASSIGN_OR_RETURN(const Extents stored, ReadExtents(input, type));
    RETURN_IF_ERROR(
        TakeBytes(input, operand, v1::Operand::kDataFieldNumber, *operand.mutable_data()));
    const Extents used = stored.Used(is_transposed);
    if (!used.matrices) operand.set_batch_stride(0);
    RETURN_IF_ERROR(AddToBatch(input, used));
    return used;
  }

  absl::Status AddToBatch(OperandRole input, const Extents& extents) {
    if (!extents.matrices) return absl::OkStatus();
    if (asked_.has_batch && product_.batch() != *extents.matrices) {
      return WrongShape(input, Concat("a batch of ", product_.batch(), " as of the inputs before"));
    }
    asked_.has_batch = true;
    product_.set_batch(*extents.matrices);
    return absl::OkStatus();
  }

  // The B of the model.
  absl::StatusOr<Extents> UseOwnB() {
    const TensorSpec& spec = model_.b->spec;
    v1::Operand& operand = *product_.mutable_b();
    operand.mutable_tensor()->mutable_tensor()->set_name(model_.name);
    operand.set_transpose(options_.transpose_b);
    Extents stored = {std::nullopt, spec.layout.rows, spec.layout.columns};
    if (spec.matrices != 1) {
      stored.matrices = spec.matrices;
      asked_.has_batch = true;
      product_.set_batch(spec.matrices);
    }
    return stored.Used(options_.transpose_b);
  }

  absl::Status ReadMatrices() {
    Extents b;
    std::optional<ElementType> own;
    if (model_.b != nullptr) {
      own = model_.b->spec.layout.type;
      ASSIGN_OR_RETURN(b, UseOwnB());
    }
    ASSIGN_OR_RETURN(const Extents a,
                     ReadMatrix(OperandRole::kA, options_.transpose_a, own, *product_.mutable_a()));
    if (model_.b == nullptr) {
      ASSIGN_OR_RETURN(b, ReadMatrix(OperandRole::kB, options_.transpose_b, std::nullopt,
                                     *product_.mutable_b()));
    }
    if (a.columns != b.rows) {
      if (model_.b != nullptr) {
        return WrongShape(OperandRole::kA, Concat("K = ", b.rows, ", as of the model's B"));
      }
      return WrongShape(OperandRole::kB, Concat("K = ", a.columns, ", as of A"));
    }
    product_.set_m(a.rows);
    product_.set_n(b.columns);
    product_.set_k(a.columns);
    return asked_.places.At(OperandRole::kC) ? ReadC() : absl::OkStatus();
  }

  absl::Status ReadC() {
    ASSIGN_OR_RETURN(const Extents c, ReadMatrix(OperandRole::kC, options_.transpose_c,
                                                 std::nullopt, *product_.mutable_c()));
    if (!options_.has_beta) product_.set_beta(1);
    if (c.rows == product_.m() && c.columns == product_.n()) return absl::OkStatus();
    return WrongShape(OperandRole::kC, Concat("M = ", product_.m(), " by N = ", product_.n()));
  }

  absl::Status ReadBias() {
    v1::Bias& bias = *product_.mutable_bias();
    bias.set_axis(options_.bias_axis);
    ASSIGN_OR_RETURN(const ElementType type, ReadType(OperandRole::kBias, std::nullopt));
    bias.set_type(ToWire(type));
    const bool along_rows = options_.bias_axis == v1::BIAS_AXIS_ROWS;
    const int64_t extent = RowExtent(type, along_rows ? product_.m() : product_.n());
    const auto& shape = InputOf(OperandRole::kBias).shape();
    if (shape.size() != 1 || shape[0] != extent) {
      return WrongShape(OperandRole::kBias, Concat("[", extent, "], ", along_rows ? "M" : "N"));
    }
    return TakeBytes(OperandRole::kBias, bias, v1::Bias::kDataFieldNumber, *bias.mutable_data());
  }

  absl::Status ReadScale(OperandRole input, int64_t extent, v1::Operand& operand) {
    if (!asked_.places.At(input)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const ElementType type, ReadType(input, std::nullopt));
    if (type != ElementType::kF32) {
      return Invalid(FieldOf(input) + ".datatype", Shown(InputOf(input).datatype()), "FP32");
    }
    const auto& shape = InputOf(input).shape();
    if (shape.size() != 1 || (shape[0] != 1 && shape[0] != extent) || shape[0] > kMaxFactors) {
      return WrongShape(input, extent > kMaxFactors ? "[1]" : Concat("[1] or [", extent, "]"));
    }
    const auto count = static_cast<size_t>(shape[0]);
    const auto wanted = static_cast<int64_t>(count * sizeof(float));
    std::string bytes;
    int64_t got = ContentsOf(input).bytes;
    // Avoids an unnecessary copy.
    if (ContentsOf(input).form == Form::kTyped || got == wanted) {
      RETURN_IF_ERROR(Decode(input, bytes));
      got = static_cast<int64_t>(bytes.size());
    }
    if (got != wanted) {
      return Invalid(FieldOf(input), Concat(got, " bytes"), Concat(count, "*4 = ", wanted));
    }
    operand.mutable_scale()->mutable_values()->Resize(static_cast<int>(count), 0);
    std::memcpy(operand.mutable_scale()->mutable_values()->mutable_data(), bytes.data(),
                bytes.size());
    return absl::OkStatus();
  }

  // The bytes of a field of the product.
  absl::Status TakeBytes(OperandRole input, const google::protobuf::Message& message, int number,
                         std::string& field) {
    InputContents& contents = ContentsOf(input);
    if (contents.form == Form::kRaw && contents.ShallStay()) {
      held_.Add(message, number, std::make_unique<HeldField>(std::move(contents.slices), quota_));
      return absl::OkStatus();
    }
    return Decode(input, field);
  }

  absl::Status Decode(OperandRole input, std::string& to) {
    InputContents& contents = ContentsOf(input);
    if (contents.form == Form::kTyped) {
      ASSIGN_OR_RETURN(to,
                       DecodeContents(FieldOf(input), InputOf(input).datatype(), contents.slices));
    } else {
      to = Joined(contents.slices);
    }
    contents.slices.clear();
    return absl::OkStatus();
  }

  InferMessage& message_;
  const ModelInferRequest& request_;
  const Model& model_;
  ReceiveQuota& quota_;
  v1::MultiplyRequest& product_;
  HeldFields& held_;
  InferOptions options_;
  InferAsked asked_;
};

}  // namespace

absl::StatusOr<int64_t> PrepareContents(InferMessage& message) {
  int64_t bytes = 0;
  int64_t decoded = 0;
  for (int i = 0; i < message.request().inputs_size(); ++i) {
    const WireInput& input = message.request().inputs(i);
    InputContents& contents = message.contents()[static_cast<size_t>(i)];
    if (contents.form == Form::kTyped && StripPackedFloats(input.datatype(), contents.slices)) {
      contents.form = Form::kRaw;
      contents.bytes = BytesOf(contents.slices);
    }
    if (contents.form == Form::kTyped) {
      decoded += contents.bytes;
      if (decoded > kMaxDecodedBytes) {
        return Invalid(
            Concat("inputs[", i, "].contents"), "more bytes of numbers",
            Concat("at most ", kMaxDecodedBytes, " in one request; send raw_input_contents"));
      }
    } else if (IsScale(input) || !contents.ShallStay()) {
      bytes += 2 * contents.bytes;
    }
  }
  return bytes + kDecodedGrowth * decoded;
}

absl::StatusOr<InferAsked> ConvertInfer(InferMessage& message, const Model& model,
                                        ReceiveQuota& quota, v1::MultiplyRequest& product,
                                        HeldFields& held) {
  return Conversion(message, model, quota, product, held).Run();
}

}  // namespace gemmd
