// SPDX-License-Identifier: Apache-2.0
//
// Converts a ModelInferRequest to a product. Things specific to KServe are checked here: names,
// datatypes, parameters and whether extents match. Everything else is checked as for every product.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/element.h"
#include "kernels/per_operand.h"
#include "kserve/v2/inference.pb.h"
#include "server/kserve/infer_message.h"
#include "server/kserve/models.h"
#include "server/wire/incoming.h"

namespace gemmd {

// The datatype in which elements are sent: FP32 for f32 and tf32, UINT8 for types without a
// datatype.
std::string_view DatatypeOf(ElementType type);
inference::DataType ConfigDatatypeOf(ElementType type);

// The number of the datatype's values in a row of `elements` elements: the same number, or the
// bytes of the row if elements are narrower than a byte.
int64_t RowExtent(ElementType type, int64_t elements);

// The type of an input: `name`, gemmd's name of it, if that is not empty, otherwise the type of its
// datatype. `field` is the input: "inputs[0]". Without a name, values in the datatype of `own` have
// the type `own`. Errors: InvalidArgument for a datatype that no type, or not this type, is sent
// in.
absl::StatusOr<ElementType> ParseInputType(std::string_view field, std::string_view datatype,
                                           std::string_view name, std::optional<ElementType> own);

// The type for a valid type of gemmd's own messages.
ElementType TypeOfWire(v1::ElementType type);

// A type by gemmd's name, or by the name of a datatype. Errors: InvalidArgument.
absl::StatusOr<ElementType> ParseTypeName(std::string_view field, std::string_view name);

// Max bytes, over all inputs of a request, of numbers that must be decoded one by one.
inline constexpr int64_t kMaxDecodedBytes = int64_t{16} << 10;

// Max bytes that are allocated to decode one byte of such numbers: the parsed numbers, which grow
// by doubling, and the elements.
inline constexpr int64_t kDecodedGrowth = 32;

// If numbers are on the wire as the bytes of their elements, as every encoder writes FP32 and FP64:
// removes everything around them, and returns whether it did.
bool StripPackedFloats(std::string_view datatype, ReceivedSlices& contents);

// The elements of an InferTensorContents as bytes. `field` is that of the input. Errors:
// InvalidArgument for numbers in the field of another datatype, or out of range; FP16 and BF16 have
// no field.
absl::StatusOr<std::string> DecodeContents(std::string_view field, std::string_view datatype,
                                           ReceivedSlices& contents);

// Maps the inputs of a request to the matrices of the product, with their names in errors.
class InferPlaces {
 public:
  // Errors: InvalidArgument for an unknown or repeated name, a missing A or B, or a B in addition
  // to the model's.
  static absl::StatusOr<InferPlaces> Find(const inference::ModelInferRequest& request,
                                          bool has_own_b);

  // The position among the request's inputs; nullopt if it is missing.
  std::optional<int> At(OperandRole input) const { return places_[input]; }

  // "inputs[1]"; "model.B" for a B that the request does not bring.
  std::string FieldOf(OperandRole input) const;

  void SetTyped() { is_typed_ = true; }

  // Changes a refusal of the product, which names fields of gemmd.v1.MultiplyRequest, to name
  // fields of this request. Other errors are unchanged.
  absl::Status Rename(const absl::Status& status) const;

 private:
  std::string NameOfOperand(OperandRole operand, std::optional<OperandRole> scale,
                            std::string_view member) const;
  std::optional<std::string> NameOfField(std::string_view field) const;

  PerOperand<std::optional<int>> places_;
  bool is_typed_ = false;  // Elements were sent as numbers.
};

// The data of a request that its answer needs, apart from the product.
struct InferAsked {
  InferPlaces places;
  bool has_batch = false;  // The first extent of D is the batch.
  int64_t timeout_ns = 0;  // From the arrival; 0: none.
};

// Converts the contents of the inputs to the form that ConvertInfer takes, and returns the max
// bytes that it allocates beside the message. Errors: InvalidArgument for too many numbers to
// decode.
absl::StatusOr<int64_t> PrepareContents(InferMessage& message);

// Fills the request of the product. Long contents stay in their slices, with `held`, which borrows
// the quota. Errors: InvalidArgument, which names the field of the ModelInferRequest; Unimplemented
// for features that only other servers have.
absl::StatusOr<InferAsked> ConvertInfer(InferMessage& message, const Model& model,
                                        ReceiveQuota& quota, v1::MultiplyRequest& product,
                                        HeldFields& held);

}  // namespace gemmd
