// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/convert_infer.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/kserve/datatype.h"
#include "server/kserve/infer_options.h"
#include "server/kserve/parameters.h"
#include "server/kserve/typed_contents.h"
#include "server/wire/convert_operand.h"

namespace gemmd {
namespace {

using inference::ModelInferRequest;
using WireInput = ModelInferRequest::InferInputTensor;
using Form = InputContents::Form;

// Factors are copied; copying as many takes less than a millisecond.
constexpr int64_t kMostFactors = int64_t{1} << 20;

std::string TextOf(const google::protobuf::RepeatedField<int64_t>& shape) {
  std::string text = "[";
  constexpr int kMostShown = 8;
  for (int i = 0; i < shape.size() && i < kMostShown; ++i) {
    text += Concat(i > 0 ? ", " : "", shape[i]);
  }
  return text + (shape.size() > kMostShown ? ", ...]" : "]");
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
    if (asked_.places.At(InferInput::kBias)) RETURN_IF_ERROR(ReadBias());
    RETURN_IF_ERROR(ReadScale(InferInput::kAScale, product_.m(), *product_.mutable_a()));
    RETURN_IF_ERROR(ReadScale(InferInput::kBScale, product_.n(), *product_.mutable_b()));
    return std::move(asked_);
  }

 private:
  const WireInput& InputOf(InferInput input) const {
    return request_.inputs(*asked_.places.At(input));
  }
  InputContents& ContentsOf(InferInput input) {
    return message_.contents()[static_cast<size_t>(*asked_.places.At(input))];
  }
  std::string FieldOf(InferInput input) const { return asked_.places.FieldOf(input); }

  absl::Status WrongShape(InferInput input, std::string_view want) const {
    return absl::InvalidArgumentError(
        GotWant(FieldOf(input) + ".shape", TextOf(InputOf(input).shape()), want));
  }

  absl::Status CheckOutputs() const {
    for (int i = 0; i < request_.outputs_size(); ++i) {
      const auto& output = request_.outputs(i);
      const std::string field = Concat("outputs[", i, "]");
      if (output.name() != "D" || i > 0) {
        return absl::InvalidArgumentError(GotWant(
            field + ".name", output.name().empty() ? "none" : Shown(output.name()), "D, once"));
      }
      const std::string parameters = field + ".parameters";
      RETURN_IF_ERROR(Parameters(parameters, output.parameters()).CheckNames({}));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ElementType> ReadType(InferInput input, std::optional<ElementType> own) const {
    const WireInput& wire = InputOf(input);
    const std::string field = FieldOf(input);
    const std::string parameters_field = field + ".parameters";
    const Parameters parameters(parameters_field, wire.parameters());
    RETURN_IF_ERROR(parameters.CheckNames({"type", "columns"}));
    ASSIGN_OR_RETURN(const std::optional<std::string> name, parameters.Text("type"));
    return ParseInputType(field, wire.datatype(), name.value_or(""), own);
  }

  // How many elements a row of an input has.
  absl::StatusOr<int64_t> ReadColumns(InferInput input, ElementType type, int64_t extent) const {
    const std::string field = FieldOf(input) + ".parameters";
    const Parameters parameters(field, InputOf(input).parameters());
    ASSIGN_OR_RETURN(const std::optional<int64_t> columns, parameters.Count("columns"));
    if (columns) {
      if (RowExtent(type, *columns) == extent) return *columns;
      return absl::InvalidArgumentError(
          GotWant(field + ".columns", Concat(*columns),
                  Concat("as many elements of type ", gemmd::NameOf(type), " as take ", extent,
                         " of the datatype's values")));
    }
    const int bits = BitsOf(type);
    if (bits >= 8) return extent;
    int64_t all_bits = 0;
    if (__builtin_mul_overflow(extent, 8, &all_bits)) {
      return WrongShape(input, "less than 2^63 bits in a row");
    }
    return all_bits / bits;
  }

  absl::StatusOr<Extents> ReadExtents(InferInput input, ElementType type) const {
    const auto& shape = InputOf(input).shape();
    for (int i = 0; i < shape.size(); ++i) {
      if (shape[i] < 0) {
        return absl::InvalidArgumentError(
            GotWant(Concat(FieldOf(input), ".shape[", i, "]"), Concat(shape[i]), "at least 0"));
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
  absl::StatusOr<Extents> ReadMatrix(InferInput input, bool is_transposed,
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

  absl::Status AddToBatch(InferInput input, const Extents& extents) {
    if (!extents.matrices) return absl::OkStatus();
    if (asked_.has_batch && product_.batch() != *extents.matrices) {
      return WrongShape(input, Concat("a batch of ", product_.batch(), " as of the inputs before"));
    }
    asked_.has_batch = true;
    product_.set_batch(*extents.matrices);
    return absl::OkStatus();
  }

  // The B that the model has.
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
                     ReadMatrix(InferInput::kA, options_.transpose_a, own, *product_.mutable_a()));
    if (model_.b == nullptr) {
      ASSIGN_OR_RETURN(
          b, ReadMatrix(InferInput::kB, options_.transpose_b, std::nullopt, *product_.mutable_b()));
    }
    if (a.columns != b.rows) {
      if (model_.b != nullptr) {
        return WrongShape(InferInput::kA, Concat("K = ", b.rows, ", as of the model's B"));
      }
      return WrongShape(InferInput::kB, Concat("K = ", a.columns, ", as of A"));
    }
    product_.set_m(a.rows);
    product_.set_n(b.columns);
    product_.set_k(a.columns);
    return asked_.places.At(InferInput::kC) ? ReadC() : absl::OkStatus();
  }

  absl::Status ReadC() {
    ASSIGN_OR_RETURN(const Extents c, ReadMatrix(InferInput::kC, options_.transpose_c, std::nullopt,
                                                 *product_.mutable_c()));
    if (!options_.has_beta) product_.set_beta(1);
    if (c.rows == product_.m() && c.columns == product_.n()) return absl::OkStatus();
    return WrongShape(InferInput::kC, Concat("M = ", product_.m(), " by N = ", product_.n()));
  }

  absl::Status ReadBias() {
    v1::Bias& bias = *product_.mutable_bias();
    bias.set_axis(options_.bias_axis);
    ASSIGN_OR_RETURN(const ElementType type, ReadType(InferInput::kBias, std::nullopt));
    bias.set_type(ToWire(type));
    const bool along_rows = options_.bias_axis == v1::BIAS_AXIS_ROWS;
    const int64_t extent = RowExtent(type, along_rows ? product_.m() : product_.n());
    const auto& shape = InputOf(InferInput::kBias).shape();
    if (shape.size() != 1 || shape[0] != extent) {
      return WrongShape(InferInput::kBias, Concat("[", extent, "], ", along_rows ? "M" : "N"));
    }
    return TakeBytes(InferInput::kBias, bias, v1::Bias::kDataFieldNumber, *bias.mutable_data());
  }

  absl::Status ReadScale(InferInput input, int64_t extent, v1::Operand& operand) {
    if (!asked_.places.At(input)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const ElementType type, ReadType(input, std::nullopt));
    if (type != ElementType::kF32) {
      return absl::InvalidArgumentError(
          GotWant(FieldOf(input) + ".datatype", Shown(InputOf(input).datatype()), "FP32"));
    }
    const auto& shape = InputOf(input).shape();
    if (shape.size() != 1 || (shape[0] != 1 && shape[0] != extent) || shape[0] > kMostFactors) {
      return WrongShape(input, extent > kMostFactors ? "[1]" : Concat("[1] or [", extent, "]"));
    }
    const auto count = static_cast<size_t>(shape[0]);
    const auto wanted = static_cast<int64_t>(count * sizeof(float));
    std::string bytes;
    int64_t got = ContentsOf(input).bytes;
    // Nothing is copied that would not do.
    if (ContentsOf(input).form == Form::kTyped || got == wanted) {
      RETURN_IF_ERROR(Decode(input, bytes));
      got = static_cast<int64_t>(bytes.size());
    }
    if (got != wanted) {
      return absl::InvalidArgumentError(
          GotWant(FieldOf(input), Concat(got, " bytes"), Concat(count, "*4 = ", wanted)));
    }
    operand.mutable_scale()->mutable_values()->Resize(static_cast<int>(count), 0);
    std::memcpy(operand.mutable_scale()->mutable_values()->mutable_data(), bytes.data(),
                bytes.size());
    return absl::OkStatus();
  }

  // The bytes of a field of the product.
  absl::Status TakeBytes(InferInput input, const google::protobuf::Message& message, int number,
                         std::string& field) {
    InputContents& contents = ContentsOf(input);
    if (contents.form == Form::kRaw && contents.ShallStay()) {
      held_.Add(message, number, std::make_unique<HeldField>(std::move(contents.slices), quota_));
      return absl::OkStatus();
    }
    return Decode(input, field);
  }

  absl::Status Decode(InferInput input, std::string& to) {
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
      contents.bytes = 0;
      for (const grpc::Slice& slice : contents.slices) {
        contents.bytes += static_cast<int64_t>(slice.size());
      }
    }
    if (contents.form == Form::kTyped) {
      decoded += contents.bytes;
      if (decoded > kMostDecodedBytes) {
        return absl::InvalidArgumentError(GotWant(
            Concat("inputs[", i, "].contents"), "more bytes of numbers",
            Concat("at most ", kMostDecodedBytes, " in one request; send raw_input_contents")));
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
