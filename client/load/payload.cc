// SPDX-License-Identifier: Apache-2.0
#include "client/load/payload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/matrix/random_matrix.h"
#include "client/matrix/verify.h"
#include "client/sparse_operand.h"
#include "client/terminal/console.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/product.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/status.h"
#include "kernels/option/resources.h"

namespace gemmd {
namespace {

v1::ElementType AccumulationOf(const LoadProduct& product) {
  return product.accumulation_type == v1::ELEMENT_TYPE_UNSPECIFIED
             ? DefaultAccumulationType(product.type, product.type)
             : product.accumulation_type;
}

// The type of D.
v1::ElementType OutputTypeOf(const LoadProduct& product) {
  return product.output_type == v1::ELEMENT_TYPE_UNSPECIFIED ? AccumulationOf(product)
                                                             : product.output_type;
}

// Sets a size of the product from a file, or checks that they agree.
absl::Status Agree(const std::string& path, absl::string_view size, int64_t got, int64_t& want) {
  if (want == 0) want = got;
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": got ", size, " = ", got, ", want ", want,
                                                 " as the rest of the product"));
}

// Reads an operand of `rows` x `columns`; errors call these sizes `row_size` and `column_size`.
absl::StatusOr<NpyArray> Read(const std::string& path, LoadProduct& product,
                              absl::string_view row_size, int64_t& rows,
                              absl::string_view column_size, int64_t& columns) {
  ASSIGN_OR_RETURN(auto array, ReadNpyFile(path, product.type));
  const size_t dimensions = array.shape.size();
  if (dimensions != 2 && dimensions != 3) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": got an array of ", dimensions,
                                                   " dimensions, want 2, or 3 for a batch"));
  }
  if (product.type == v1::ELEMENT_TYPE_UNSPECIFIED) product.type = array.type;
  if (array.type != product.type) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": got elements of ", std::string(ElementTypeName(array.type)),
                     ", want ", std::string(ElementTypeName(product.type))));
  }
  absl::Status status = Agree(path, row_size, array.shape[dimensions - 2], rows);
  status.Update(Agree(path, column_size, array.shape[dimensions - 1], columns));
  status.Update(Agree(path, "batch", dimensions == 3 ? array.shape[0] : 1, product.batch));
  if (!status.ok()) return status;
  return array;
}

}  // namespace

absl::StatusOr<GivenOperands> ReadOperands(LoadProduct& product) {
  GivenOperands given;
  if (!product.a_path.empty()) {
    ASSIGN_OR_RETURN(given.a, Read(product.a_path, product, "m", product.m, "k", product.k));
  }
  if (!product.b_path.empty()) {
    ASSIGN_OR_RETURN(auto b, Read(product.b_path, product, "k", product.k, "n", product.n));
    product.b_order = b.order;
    given.b = std::move(b);
  }
  if (product.m < 1 || product.n < 1 || product.k < 1 || product.batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "m,n,k: got ", product.m, ",", product.n, ",", product.k, " in a batch of ", product.batch,
        ", want sizes of 1 on: --shape names those of an operand that "
        "comes from no file"));
  }
  return given;
}

namespace {

// The integers that an element type holds exactly: from `min` (negative or 0) to `max`.
struct IntegerRange {
  int64_t min;
  int64_t max;
};

// A float with p significant bits holds all integers up to +-2^p, or fewer if its exponent range
// ends first.
IntegerRange RangeOfType(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F64:
    case v1::ELEMENT_TYPE_F32:
    case v1::ELEMENT_TYPE_S32:
    case v1::ELEMENT_TYPE_TF32:
    case v1::ELEMENT_TYPE_F16: return {-2048, 2048};
    case v1::ELEMENT_TYPE_BF16: return {-256, 256};
    case v1::ELEMENT_TYPE_E4M3: return {-16, 16};
    case v1::ELEMENT_TYPE_E5M2:
    case v1::ELEMENT_TYPE_E3M2: return {-8, 8};
    case v1::ELEMENT_TYPE_E2M3: return {-7, 7};
    case v1::ELEMENT_TYPE_E2M1: return {-4, 4};
    case v1::ELEMENT_TYPE_S8: return {-127, 127};
    case v1::ELEMENT_TYPE_U8: return {0, 255};
    case v1::ELEMENT_TYPE_S4: return {-7, 7};
    case v1::ELEMENT_TYPE_U4: return {0, 15};
    case v1::ELEMENT_TYPE_B1: return {0, 1};
    default: return {0, 0};
  }
}

// Sums below this are exact in any order. Tensor cores sum the products of floats of at most 8 bits
// with 13 bits below the largest product.
double ExactLimit(const LoadProduct& product) {
  switch (AccumulationOf(product)) {
    case v1::ELEMENT_TYPE_F64: return 0x1p53;
    case v1::ELEMENT_TYPE_S32: return 0x1p31;
    case v1::ELEMENT_TYPE_F16: return 0x1p11;
    default: return ElementBits(product.type) <= 8 ? 0x1p13 : 0x1p24;
  }
}

// The widest range of operand values for which every sum of products is an exact integer; nullopt
// if there is none, or if D's type rounds.
std::optional<IntegerRange> ExactRange(const LoadProduct& product) {
  const v1::ElementType accumulation = AccumulationOf(product);
  if (product.output_type != v1::ELEMENT_TYPE_UNSPECIFIED && product.output_type != accumulation) {
    return std::nullopt;
  }
  const double max_squared = (ExactLimit(product) - 1) / static_cast<double>(product.k);
  const int64_t max = static_cast<int64_t>(std::sqrt(max_squared));
  if (max < 1) return std::nullopt;
  const IntegerRange range = RangeOfType(product.type);
  return IntegerRange{std::max(range.min, -max), std::min(range.max, max)};
}

std::string IntegerLines(v1::ElementType type, IntegerRange range, int64_t length, int64_t count,
                         uint64_t seed) {
  const size_t line_bytes =
      (static_cast<size_t>(length) * static_cast<size_t>(ElementBits(type)) + 7) / 8;
  std::string data(line_bytes * static_cast<size_t>(count), '\0');
  SplitMix random(seed);
  const uint64_t values = static_cast<uint64_t>(range.max - range.min + 1);
  for (size_t line = 0; line < static_cast<size_t>(count); ++line) {
    for (int64_t i = 0; i < length; ++i) {
      const int64_t value = range.min + static_cast<int64_t>(random.Next() % values);
      StoreElement(type, ElementPattern(type, static_cast<double>(value)), i,
                   data.data() + line * line_bytes);
    }
  }
  return data;
}

int64_t IntegerAt(const MatrixReader& matrix, int64_t batch, int64_t row, int64_t column) {
  return static_cast<int64_t>(matrix.At(batch, row, column));
}

// Unsigned arithmetic: sums wrap around.
int64_t Add(int64_t sum, int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(sum) +
                              static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

Fingerprint MakeFingerprint(const v1::MultiplyRequest& request, int64_t batch, uint64_t seed) {
  const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
  const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
  Fingerprint fingerprint;
  SplitMix random(seed);
  for (int64_t j = 0; j < request.n(); ++j) {
    fingerprint.x.push_back(static_cast<int64_t>(random.Next() >> 44));
  }
  for (int64_t matrix = 0; matrix < batch; ++matrix) {
    std::vector<int64_t> bx(static_cast<size_t>(request.k()));
    for (int64_t i = 0; i < request.k(); ++i) {
      int64_t& sum = bx[static_cast<size_t>(i)];
      for (int64_t j = 0; j < request.n(); ++j) {
        sum = Add(sum, IntegerAt(b, matrix, i, j), fingerprint.x[static_cast<size_t>(j)]);
      }
    }
    for (int64_t i = 0; i < request.m(); ++i) {
      int64_t sum = 0;
      for (int64_t j = 0; j < request.k(); ++j) {
        sum = Add(sum, IntegerAt(a, matrix, i, j), bx[static_cast<size_t>(j)]);
      }
      fingerprint.dx.push_back(sum);
    }
  }
  return fingerprint;
}

absl::Status CheckFingerprint(const Fingerprint& fingerprint, const v1::Matrix& d) {
  const MatrixReader reader(d);
  for (int64_t matrix = 0; matrix < d.batch(); ++matrix) {
    for (int64_t i = 0; i < d.rows(); ++i) {
      int64_t sum = 0;
      for (int64_t j = 0; j < d.columns(); ++j) {
        const double element = reader.At(matrix, i, j);
        // NaN fails this test.
        if (!(std::fabs(element) <= 0x1p53) || element != std::trunc(element)) {
          return absl::DataLossError(absl::StrCat("d[", matrix, ", ", i, ", ", j, "]: got ",
                                                  element, ", want an integer"));
        }
        sum = Add(sum, static_cast<int64_t>(element), fingerprint.x[static_cast<size_t>(j)]);
      }
      if (sum != fingerprint.dx[static_cast<size_t>(matrix * d.rows() + i)]) {
        return absl::DataLossError(
            absl::StrCat("d[", matrix, ", ", i, ", ...]: got a wrong row, want that of A B"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::MultiplyRequest> MakeRequest(const LoadProduct& product,
                                                const GivenOperands& given,
                                                const std::optional<IntegerRange>& range,
                                                uint64_t seed) {
  // Random elements, whose lines are those of a row-major A, or those of B.
  const auto make = [&](int64_t length, int64_t count, uint64_t of_operand) {
    return range.has_value() ? IntegerLines(product.type, *range, length, count, of_operand)
                             : RandomLines(product.type, length, count, of_operand);
  };
  const bool has_columns = product.b_order == v1::ORDER_COLUMN_MAJOR;
  const std::string a_made =
      given.a.has_value() ? "" : make(product.k, product.batch * product.m, seed);
  const std::string b_made =
      given.b.has_value() ? ""
                          : make(has_columns ? product.k : product.n,
                                 product.batch * (has_columns ? product.n : product.k), seed + 1);
  const auto view = [&](const std::string& data, int64_t rows, int64_t columns) {
    return PackedView(product.type, std::as_bytes(std::span(data)), rows, columns);
  };
  MatrixView a = view(given.a.has_value() ? given.a->data : a_made, product.m, product.k);
  if (given.a.has_value()) a.order = given.a->order;
  SparseOperand compressed;
  if (product.is_sparse) {
    ASSIGN_OR_RETURN(compressed, CompressOperand("a", a, product.batch, Pruning::kByMagnitude));
    a.data = std::as_bytes(std::span(compressed.data));
    a.order = v1::ORDER_ROW_MAJOR;
    a.sparsity = v1::SPARSITY_2_4;
  }
  ProductOptions options;
  if (product.batch != 1) options.batch = product.batch;
  options.accumulation_type = product.accumulation_type;
  options.output_type = product.output_type;
  options.fast_accumulation = product.fast_accumulation;
  options.kernel = product.kernel;
  options.device = product.device;
  MatrixView b = view(given.b.has_value() ? given.b->data : b_made, product.k, product.n);
  b.order = product.b_order;
  return BuildRequest(a, b, options);
}

// Checks the memory for the operands, for the message that contains them (lines start on bytes),
// and for the sums of the checks.
absl::Status CheckMemory(const LoadProduct& product) {
  const auto line_bytes = [&](int64_t elements) {
    return (elements * ElementBits(product.type) + 7) / 8;
  };
  const bool has_columns = product.b_order == v1::ORDER_COLUMN_MAJOR;
  const int64_t a_lines = product.batch * product.m;
  const int64_t b_lines = product.batch * (has_columns ? product.n : product.k);
  const int64_t operands =
      a_lines * line_bytes(product.k) + b_lines * line_bytes(has_columns ? product.k : product.n);
  constexpr int64_t kSumBytes = 8;
  const int64_t sums = (product.n + product.k + a_lines) * kSumBytes;
  const std::string refusal = option::RefuseMemory(
      absl::StrCat(product.m, "x", product.n, "x", product.k), 2 * operands + sums);
  if (refusal.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(product.name, ": ", refusal));
}

absl::Status CheckSize(const LoadProduct& product) {
  const double bits = ElementBits(product.type);
  const double elements = static_cast<double>(product.m + product.n) *
                          static_cast<double>(product.k) * static_cast<double>(product.batch);
  // A gRPC message has less than 2 GiB.
  if (!(elements * bits / 8 < 0x1p31)) {
    return absl::InvalidArgumentError(absl::StrCat(product.name, ": got ", elements * bits / 8,
                                                   " bytes of operands, want less than 2^31"));
  }
  // This check also ensures that the number of operations fits 63 bits.
  const double answer_bytes = static_cast<double>(product.m) * static_cast<double>(product.n) *
                              static_cast<double>(product.batch) *
                              ElementBits(OutputTypeOf(product)) / 8;
  if (!(answer_bytes < 0x1p31)) {
    return absl::InvalidArgumentError(
        absl::StrCat(product.name, ": got ", answer_bytes, " bytes of d, want less than 2^31"));
  }
  return CheckMemory(product);
}

// Downloads a result that stayed on the server, and frees its slot.
absl::Status FetchResult(const Payload& payload, v1::MultiplyResponse& response) {
  const auto slot = payload.slots.find(response.tensor().handle());
  if (slot == payload.slots.end()) {
    return absl::DataLossError("d: got another tensor than the one that was named");
  }
  std::string bytes(static_cast<size_t>(payload.answer_bytes), '\0');
  const auto got = slot->second->reader->Get(TensorOfHandle(response.tensor().handle()),
                                             std::as_writable_bytes(std::span(bytes)));
  slot->second->is_taken = false;
  if (!got.ok()) return got.status();
  *response.mutable_d()->mutable_data() = std::move(bytes);
  return absl::OkStatus();
}

}  // namespace

void Payload::Release(const v1::MultiplyResponse& response) const {
  const auto slot = slots.find(response.tensor().handle());
  if (slot != slots.end()) slot->second->is_taken = false;
}

absl::StatusOr<Payload> MakePayload(const LoadProduct& product, OperandValues values, uint64_t seed,
                                    const GivenOperands& given) {
  RETURN_IF_ERROR(CheckSize(product));
  // Sums of products of given values may not be exact integers.
  const bool is_random = !given.a.has_value() && !given.b.has_value();
  const std::optional<IntegerRange> range =
      is_random && values == OperandValues::kIntegers ? ExactRange(product) : std::nullopt;
  auto request = MakeRequest(product, given, range, seed);
  if (!request.ok()) return Prefixed(product.name, request.status());
  Payload payload;
  if (range.has_value()) payload.fingerprint = MakeFingerprint(*request, product.batch, seed + 2);
  payload.operations = 2 * product.m * product.n * product.k * product.batch;
  payload.sent_bytes = static_cast<int64_t>(request->ByteSizeLong());
  payload.answer_bytes =
      product.batch * product.m * ((product.n * ElementBits(OutputTypeOf(product)) + 7) / 8);
  payload.request = std::make_shared<const v1::MultiplyRequest>(*std::move(request));
  return payload;
}

absl::Status CheckAnswer(const Payload& payload, v1::MultiplyResponse response) {
  if (!payload.answers_inline) {
    RETURN_IF_ERROR(FetchResult(payload, response));
  }
  // FromResponse checks that the layout fits the bytes.
  ASSIGN_OR_RETURN(const auto result, MultiplyResult::FromResponse(std::move(response)));
  const v1::Matrix& d = result.response().d();
  const v1::MultiplyRequest& request = *payload.request;
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  if (d.rows() != request.m() || d.columns() != request.n() || d.batch() != batch ||
      static_cast<int64_t>(d.data().size()) != payload.answer_bytes) {
    return absl::DataLossError(absl::StrCat("d: got ", d.batch(), " of ", d.rows(), "x",
                                            d.columns(), " in ", d.data().size(), " bytes, want ",
                                            batch, " of ", request.m(), "x", request.n(), " in ",
                                            payload.answer_bytes));
  }
  if (payload.fingerprint.has_value()) return CheckFingerprint(*payload.fingerprint, d);
  // Limited to a few milliseconds, to disturb the load little.
  const auto verified =
      Verify(request, d, {.multiplications = int64_t{1} << 21, .elements = int64_t{1} << 16},
             SummationOn(result.response().device()));
  if (!verified.ok()) return absl::DataLossError(verified.status().message());
  if (verified->passed()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("d[", verified->worst.batch, ", ", verified->worst.row,
                                          ", ", verified->worst.column, "]: got ",
                                          verified->worst.got, ", want ", verified->worst.want,
                                          " within ", verified->worst.bound));
}

namespace {

// Uploads an operand as a resident tensor, which the request then names instead of bytes.
absl::Status Keep(Client& client, int64_t rows, int64_t columns, int64_t batch,
                  v1::Operand& operand, std::vector<ResidentTensor>& tensors) {
  MatrixView view =
      PackedView(operand.type(), std::as_bytes(std::span(operand.data())), rows, columns);
  view.order = operand.order();
  view.sparsity = operand.sparsity();
  ASSIGN_OR_RETURN(auto tensor, client.Put(view, {.matrices = batch}));
  operand.Clear();
  *operand.mutable_tensor() = tensor.view().part();
  tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

// The same request with D in a new tensor.
absl::StatusOr<std::shared_ptr<v1::MultiplyRequest>> KeepResult(const LoadProduct& product,
                                                                Client& client,
                                                                const v1::MultiplyRequest& request,
                                                                Payload& payload) {
  const std::string zeros(static_cast<size_t>(payload.answer_bytes), '\0');
  const MatrixView view =
      PackedView(OutputTypeOf(product), std::as_bytes(std::span(zeros)), product.m, product.n);
  ASSIGN_OR_RETURN(auto tensor, client.Put(view, {.matrices = product.batch}));
  auto kept = std::make_shared<v1::MultiplyRequest>(request);
  *kept->mutable_d()->mutable_tensor() = tensor.view().part();
  payload.tensors.push_back(std::move(tensor));
  return kept;
}

// Concurrent calls write D to different tensors, like calls of different users: a product that
// writes the D of another one waits for it, and for its check. Small results have more tensors.
int64_t CountOfResults(int64_t bytes) {
  constexpr int64_t kBytesOfSmall = int64_t{4} << 20;
  constexpr int64_t kMaxBytes = int64_t{512} << 20;
  constexpr int64_t kUsual = 16;
  constexpr int64_t kMax = 64;
  const int64_t of_small = std::clamp(kBytesOfSmall / std::max<int64_t>(bytes, 1), kUsual, kMax);
  return std::clamp<int64_t>(kMaxBytes / std::max<int64_t>(bytes, 1), 1, of_small);
}

// Calls leave D in a few tensors in turn, in fewer if the server has no room for more; calls whose
// answers are checked use another tensor.
absl::Status KeepResults(const LoadProduct& product, Client& client,
                         const std::shared_ptr<Client>& reader,
                         std::shared_ptr<v1::MultiplyRequest>& request, Payload& payload) {
  ASSIGN_OR_RETURN(const auto session, client.OpenSession());
  if (auto joined = reader->OpenSession(session.token); !joined.ok()) return joined.status();
  ASSIGN_OR_RETURN(auto checked, KeepResult(product, client, *request, payload));
  auto slot = std::make_unique<ResultSlot>();
  slot->request = checked;
  slot->reader = reader;
  payload.slot_of_client.push_back(slot.get());
  payload.slots[payload.tensors.back().handle()] = std::move(slot);
  ASSIGN_OR_RETURN(const auto first, KeepResult(product, client, *request, payload));
  auto& others = payload.others.emplace_back();
  for (int64_t i = 1; i < CountOfResults(payload.answer_bytes); ++i) {
    absl::StatusOr<std::shared_ptr<v1::MultiplyRequest>> other =
        KeepResult(product, client, *request, payload);
    if (absl::IsResourceExhausted(other.status())) break;
    RETURN_IF_ERROR(other.status());
    others.push_back(*std::move(other));
  }
  request = first;
  return absl::OkStatus();
}

}  // namespace

const std::vector<OperandPlace>& OperandPlaces() {
  static const auto& places = *new std::vector<OperandPlace>{
      {"inline", "sent with each call", false, false},
      {"resident", "B, the weights, is uploaded once; A and D are sent with each call", true,
       false},
      {"resident-all", "A and B are uploaded once, and D stays in one of a few tensors", true,
       true}};
  return places;
}

const OperandPlace* FindOperandPlace(absl::string_view name) {
  for (const OperandPlace& place : OperandPlaces()) {
    if (place.name == name) return &place;
  }
  return nullptr;
}

absl::Status PlaceOperands(const OperandPlace& place, const LoadProduct& product, Client& client,
                           const std::shared_ptr<Client>& reader, Payload& payload) {
  if (!place.keeps_b) {
    payload.placed.push_back(payload.request);
    return absl::OkStatus();
  }
  auto request = std::make_shared<v1::MultiplyRequest>(*payload.request);
  absl::Status status =
      Keep(client, product.k, product.n, product.batch, *request->mutable_b(), payload.tensors);
  if (status.ok() && place.keeps_ad) {
    status =
        Keep(client, product.m, product.k, product.batch, *request->mutable_a(), payload.tensors);
    if (status.ok()) status = KeepResults(product, client, reader, request, payload);
    payload.answers_inline = false;
  }
  if (!status.ok()) return Prefixed(product.name, status);
  payload.sent_bytes = static_cast<int64_t>(request->ByteSizeLong());
  payload.placed.push_back(std::move(request));
  return absl::OkStatus();
}

}  // namespace gemmd
