// SPDX-License-Identifier: Apache-2.0
//
// The product that a ModelInferRequest asks for. What KServe has words of its own for is checked
// here: names, datatypes, parameters and how extents fit each other. All else is checked where
// every product is.
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
#include "kserve/v2/inference.pb.h"
#include "server/crossing/per_operand.h"
#include "server/kserve/infer_message.h"
#include "server/kserve/models.h"
#include "server/wire/incoming.h"

namespace gemmd {

// The datatype in which elements travel: FP32 for f32 and tf32, UINT8 for all that has no other.
std::string_view DatatypeOf(ElementType type);
inference::DataType ConfigDatatypeOf(ElementType type);

// Whether the datatype alone tells the type.
bool IsToldByDatatype(ElementType type);

// How many of the datatype's values a row of so many elements takes: as many, or its bytes where
// these are narrower than a byte.
int64_t RowExtent(ElementType type, int64_t elements);

// The type of an input: what its datatype tells, or `name`, gemmd's name of it, where that is not
// empty. `field` is the input: "inputs[0]". Where neither a name is given nor another type is
// meant, bytes are elements of `own`.
// Errors: InvalidArgument a datatype that no type travels in, or not this one.
absl::StatusOr<ElementType> ParseInputType(std::string_view field, std::string_view datatype,
                                           std::string_view name, std::optional<ElementType> own);

// The type that gemmd's own messages name; theirs is one that there is.
ElementType TypeOfWire(v1::ElementType type);

// A type by gemmd's name, or by that of a datatype. Errors: InvalidArgument.
absl::StatusOr<ElementType> ParseTypeName(std::string_view field, std::string_view name);

// Numbers that have to be decoded one by one, of all inputs of a request.
inline constexpr int64_t kMaxDecodedBytes = int64_t{16} << 10;

// The most bytes of elements that a byte of such numbers becomes.
inline constexpr int64_t kDecodedGrowth = 4;

// Where numbers lie on the wire as the bytes of their elements, which is how every encoder has FP32
// and FP64: removes what is around them, and returns whether it did.
bool StripPackedFloats(std::string_view datatype, ReceivedSlices& contents);

// The elements of an InferTensorContents as bytes. `field` is the input's. Errors: InvalidArgument
// numbers of another datatype's field, or beyond its range; FP16 and BF16 have no field.
absl::StatusOr<std::string> DecodeContents(std::string_view field, std::string_view datatype,
                                           ReceivedSlices& contents);

// Which input of a request is which matrix of the product, and how errors name it.
class InferPlaces {
 public:
  // Errors: InvalidArgument an unknown name, one that comes twice, no A; no B, or one beside that
  // of the model.
  static absl::StatusOr<InferPlaces> Find(const inference::ModelInferRequest& request,
                                          bool has_own_b);

  // The position among the request's inputs; none where it is not there.
  std::optional<int> At(OperandRole input) const { return places_[input]; }

  // "inputs[1]"; "model.B" for a B that the request does not bring.
  std::string FieldOf(OperandRole input) const;

  void SetTyped() { is_typed_ = true; }

  // A refusal of the product, whose fields are those of gemmd.v1.MultiplyRequest, in the words of
  // this request. Others stay as they are.
  absl::Status Rename(const absl::Status& status) const;

 private:
  std::string NameOfOperand(OperandRole operand, std::optional<OperandRole> scale,
                            std::string_view member) const;
  std::optional<std::string> NameOfField(std::string_view field) const;

  PerOperand<std::optional<int>> places_;
  bool is_typed_ = false;  // Elements came as numbers.
};

// What an answer needs to know of its request, beside the product.
struct InferAsked {
  InferPlaces places;
  bool has_batch = false;  // D has a first extent for it.
  int64_t timeout_ns = 0;  // From the arrival; 0: none.
};

// Brings the contents of the inputs into the form in which ConvertInfer takes them, and returns the
// most bytes that it takes beside the message. Errors: InvalidArgument too many numbers that are to
// be decoded.
absl::StatusOr<int64_t> PrepareContents(InferMessage& message);

// Fills the request of the product. Long contents stay in their slices, with `held`, which borrows
// the quota. Errors: InvalidArgument, which names the field of the ModelInferRequest; Unimplemented
// what only other servers have.
absl::StatusOr<InferAsked> ConvertInfer(InferMessage& message, const Model& model,
                                        ReceiveQuota& quota, v1::MultiplyRequest& product,
                                        HeldFields& held);

}  // namespace gemmd
