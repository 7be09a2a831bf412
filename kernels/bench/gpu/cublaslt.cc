// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/cublaslt.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/bench/gpu/cuda_types.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

constexpr int kMostProposals = 16;
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

absl::Status LtStatus(int status, std::string_view what) {
  if (status == kCublasSuccess) return absl::OkStatus();
  return absl::UnimplementedError(Concat("cuBLASLt: ", what, ": status ", status));
}

// A descriptor of the library, given back at the end.
class Descriptor {
 public:
  explicit Descriptor(int (*destroy)(void*)) : destroy_(destroy) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (object_ != nullptr) destroy_(object_);
  }

  void** out() { return &object_; }
  void* get() const { return object_; }

 private:
  int (*destroy_)(void*);
  void* object_ = nullptr;
};

// alpha and beta of any scale type.
struct Scalar {
  alignas(8) std::byte bytes[8] = {};

  static Scalar Of(ElementType type, double value) {
    Scalar scalar;
    StoreBits(type, scalar.bytes, 0, Encode(type, value));
    return scalar;
  }
};

// A way of adding up.
struct Arithmetic {
  int compute_type;
  ElementType scale;
};

// What gives results of the problem's type from its operands.
std::vector<Arithmetic> ArithmeticsOf(const Problem& problem) {
  switch (problem.a.type) {
    case ElementType::kF64: return {{kCublasCompute64F, ElementType::kF64}};
    case ElementType::kTf32: return {{kCublasCompute32FFastTf32, ElementType::kF32}};
    case ElementType::kS8: return {{kCublasCompute32I, ElementType::kS32}};
    case ElementType::kF16:
      if (problem.d.type != ElementType::kF16) break;
      return {{kCublasCompute32F, ElementType::kF32}, {kCublasCompute16F, ElementType::kF16}};
    default: break;
  }
  return {{kCublasCompute32F, ElementType::kF32}};
}

struct Matrix {
  const MatrixLayout& layout;
  std::byte* first;  // Of the first set.
};

class CublasLtOpponent : public Opponent {
 public:
  CublasLtOpponent(const CublasLtApi& api, void* handle, Device& device,
                   const OperandSets& operands, const Arithmetic& arithmetic)
      : api_(api),
        handle_(handle),
        device_(device),
        operands_(operands),
        arithmetic_(arithmetic),
        form_(ColumnMajorProductOf(operands.problem())),
        one_(Scalar::Of(arithmetic.scale, 1)),
        zero_(Scalar::Of(arithmetic.scale, 0)) {}

  // Time of one product, the fastest way that was found.
  absl::StatusOr<double> Search();

  std::string how() const override { return Concat("best of ", tried_); }
  absl::Status Multiply(int set) override;

 private:
  Matrix First() const {
    if (form_.is_swapped) return {operands_.problem().b, operands_.b(0)};
    return {operands_.problem().a, operands_.a(0)};
  }
  Matrix Second() const {
    if (form_.is_swapped) return {operands_.problem().a, operands_.a(0)};
    return {operands_.problem().b, operands_.b(0)};
  }
  Matrix Result() const { return {operands_.problem().d, operands_.d(0)}; }

  absl::Status Describe();
  absl::Status DescribeMatrix(const Matrix& matrix, Descriptor& layout);
  absl::StatusOr<std::vector<CublasLtHeuristicResult>> Propose();
  absl::StatusOr<double> Time();

  const CublasLtApi& api_;
  void* const handle_;
  Device& device_;
  const OperandSets& operands_;
  const Arithmetic arithmetic_;
  const ColumnMajorProduct form_;
  const Scalar one_;
  const Scalar zero_;
  Descriptor product_{api_.destroy_product};
  Descriptor first_{api_.destroy_layout};
  Descriptor second_{api_.destroy_layout};
  Descriptor result_{api_.destroy_layout};
  DeviceBytes workspace_;
  CublasLtAlgorithm algorithm_ = {};
  int tried_ = 0;
};

absl::Status CublasLtOpponent::DescribeMatrix(const Matrix& matrix, Descriptor& layout) {
  const std::optional<CudaDataType> type = CudaDataTypeOf(matrix.layout.type);
  if (!type) {
    return absl::UnimplementedError(Concat("cuBLASLt: no type ", NameOf(matrix.layout.type)));
  }
  // Column major to the library: its rows are what lies in a line.
  return LtStatus(
      api_.create_layout(layout.out(), *type, static_cast<uint64_t>(matrix.layout.line_length()),
                         static_cast<uint64_t>(matrix.layout.lines()),
                         matrix.layout.leading_dimension),
      "matrix");
}

absl::Status CublasLtOpponent::Describe() {
  RETURN_IF_ERROR(DescribeMatrix(First(), first_));
  RETURN_IF_ERROR(DescribeMatrix(Second(), second_));
  RETURN_IF_ERROR(DescribeMatrix(Result(), result_));
  RETURN_IF_ERROR(LtStatus(api_.create_product(product_.out(), arithmetic_.compute_type,
                                               *CudaDataTypeOf(arithmetic_.scale)),
                           "product"));
  const int32_t first = form_.transposes_first ? kCublasOpT : kCublasOpN;
  const int32_t second = form_.transposes_second ? kCublasOpT : kCublasOpN;
  RETURN_IF_ERROR(
      LtStatus(api_.set_product(product_.get(), kCublasLtDescTransA, &first, sizeof(first)),
               "transposition"));
  RETURN_IF_ERROR(
      LtStatus(api_.set_product(product_.get(), kCublasLtDescTransB, &second, sizeof(second)),
               "transposition"));
  if (BitsOf(operands_.problem().a.type) == 8 && IsFloat(operands_.problem().a.type)) {
    const int8_t is_fast = 1;
    RETURN_IF_ERROR(LtStatus(
        api_.set_product(product_.get(), kCublasLtDescFastAccum, &is_fast, sizeof(is_fast)),
        "fast accumulation"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CublasLtHeuristicResult>> CublasLtOpponent::Propose() {
  Descriptor preference(api_.destroy_preference);
  RETURN_IF_ERROR(LtStatus(api_.create_preference(preference.out()), "preference"));
  const uint64_t workspace_bytes = kWorkspaceBytes;
  RETURN_IF_ERROR(LtStatus(api_.set_preference(preference.get(), kCublasLtPrefMaxWorkspaceBytes,
                                               &workspace_bytes, sizeof(workspace_bytes)),
                           "workspace"));
  const std::pair<int, const std::byte*> pointers[] = {
      {kCublasLtPrefMinAlignmentA, First().first},
      {kCublasLtPrefMinAlignmentB, Second().first},
      {kCublasLtPrefMinAlignmentC, Result().first},
      {kCublasLtPrefMinAlignmentD, Result().first}};
  for (const auto& [attribute, pointer] : pointers) {
    const uint32_t alignment = AlignmentOf(pointer);
    RETURN_IF_ERROR(
        LtStatus(api_.set_preference(preference.get(), attribute, &alignment, sizeof(alignment)),
                 "alignment"));
  }
  std::vector<CublasLtHeuristicResult> proposals(kMostProposals);
  int count = 0;
  RETURN_IF_ERROR(LtStatus(
      api_.heuristics(handle_, product_.get(), first_.get(), second_.get(), result_.get(),
                      result_.get(), preference.get(), kMostProposals, proposals.data(), &count),
      "heuristics"));
  proposals.resize(static_cast<size_t>(count));
  return proposals;
}

absl::StatusOr<double> CublasLtOpponent::Time() {
  constexpr int kSamples = 3;
  RETURN_IF_ERROR(Multiply(0));
  RETURN_IF_ERROR(device_.Wait());
  ASSIGN_OR_RETURN(const std::unique_ptr<Loop> loop,
                   device_.MakeLoop(operands_.count(), [this](int set) { return Multiply(set); }));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kSamples; ++i) {
    ASSIGN_OR_RETURN(const double seconds, loop->Run(1));
    best = std::min(best, seconds / loop->calls());
  }
  return best;
}

absl::StatusOr<double> CublasLtOpponent::Search() {
  RETURN_IF_ERROR(Describe());
  ASSIGN_OR_RETURN(const std::vector<CublasLtHeuristicResult> proposals, Propose());
  ASSIGN_OR_RETURN(workspace_, device_.Allocate(kWorkspaceBytes));
  double best = std::numeric_limits<double>::infinity();
  CublasLtAlgorithm best_algorithm = {};
  for (const CublasLtHeuristicResult& proposal : proposals) {
    if (proposal.status != kCublasSuccess) continue;
    algorithm_ = proposal.algorithm;
    const absl::StatusOr<double> seconds = Time();
    if (absl::IsUnimplemented(seconds.status())) continue;  // Not every proposal can be run.
    RETURN_IF_ERROR(seconds.status());
    ++tried_;
    if (*seconds < best) {
      best = *seconds;
      best_algorithm = algorithm_;
    }
  }
  if (tried_ == 0) return absl::UnimplementedError("cuBLASLt: no algorithm");
  algorithm_ = best_algorithm;
  return best;
}

absl::Status CublasLtOpponent::Multiply(int set) {
  const std::byte* const first = form_.is_swapped ? operands_.b(set) : operands_.a(set);
  const std::byte* const second = form_.is_swapped ? operands_.a(set) : operands_.b(set);
  std::byte* const d = operands_.d(set);
  return LtStatus(api_.multiply(handle_, product_.get(), one_.bytes, first, first_.get(), second,
                                second_.get(), zero_.bytes, d, result_.get(), d, result_.get(),
                                &algorithm_, workspace_.get(), kWorkspaceBytes, device_.stream()),
                  "multiply");
}

}  // namespace

// Column major, the bytes of a row-major matrix are its transpose's. So a row-major D asks for
// D^T = B^T A^T.
ColumnMajorProduct ColumnMajorProductOf(const Problem& problem) {
  const bool a_is_column_major = problem.a.order == Order::kColumnMajor;
  const bool b_is_column_major = problem.b.order == Order::kColumnMajor;
  if (problem.d.order == Order::kColumnMajor)
    return {false, !a_is_column_major, !b_is_column_major};
  return {true, b_is_column_major, a_is_column_major};
}

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Load(const std::string& path) {
  ASSIGN_OR_RETURN(CublasLtApi api, CublasLtApi::Load(path));
  auto library = std::unique_ptr<CublasLt>(new CublasLt(std::move(api)));
  const int status = library->api_.create(&library->handle_);
  if (status == kCublasSuccess) return library;
  library->handle_ = nullptr;
  return absl::InternalError(Concat("cuBLASLt: cublasLtCreate: status ", status));
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) api_.destroy(handle_);
}

std::string CublasLt::version() const {
  const auto version = static_cast<int64_t>(api_.version());  // 130100
  return Concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::unique_ptr<Opponent>> CublasLt::Prepare(Device& device,
                                                            const OperandSets& operands) {
  if (operands.problem().a.is_sparse()) {
    return absl::UnimplementedError("cuBLASLt: no sparse products");
  }
  absl::StatusOr<std::unique_ptr<Opponent>> best = absl::UnimplementedError("no arithmetic");
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const Arithmetic& arithmetic : ArithmeticsOf(operands.problem())) {
    auto opponent = std::make_unique<CublasLtOpponent>(api_, handle_, device, operands, arithmetic);
    const absl::StatusOr<double> seconds = opponent->Search();
    if (!seconds.ok()) {
      if (!best.ok()) best = seconds.status();
    } else if (*seconds < best_seconds) {
      best_seconds = *seconds;
      best = std::move(opponent);
    }
  }
  return best;
}

}  // namespace gemmd::bench
