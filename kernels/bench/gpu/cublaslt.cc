// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/cublaslt.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/bench/gpu/cublaslt_api.h"
#include "kernels/bench/gpu/cuda_types.h"
#include "kernels/bench/gpu/library_problem.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

constexpr int kMaxProposals = 16;
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

absl::Status LtStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnimplementedError(
      Concat("cuBLASLt: ", what, ": status ", static_cast<int>(status)));
}

// An owned descriptor of the library.
template <typename Object>
class Descriptor {
 public:
  explicit Descriptor(cublasStatus_t (*destroy)(Object)) : destroy_(destroy) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (object_ != nullptr) destroy_(object_);
  }

  Object* out() { return &object_; }
  Object get() const { return object_; }

 private:
  cublasStatus_t (*destroy_)(Object);
  Object object_ = nullptr;
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

// A compute type and scale type.
struct Arithmetic {
  cublasComputeType_t compute_type;
  ElementType scale;
};

// The arithmetics that give the problem's result type from its operands.
std::vector<Arithmetic> ArithmeticsOf(const Problem& problem) {
  switch (problem.a.type) {
    case ElementType::kF64: return {{CUBLAS_COMPUTE_64F, ElementType::kF64}};
    case ElementType::kTf32: return {{CUBLAS_COMPUTE_32F_FAST_TF32, ElementType::kF32}};
    case ElementType::kS8: return {{CUBLAS_COMPUTE_32I, ElementType::kS32}};
    case ElementType::kF16:
      if (problem.d.type != ElementType::kF16) break;
      return {{CUBLAS_COMPUTE_32F, ElementType::kF32}, {CUBLAS_COMPUTE_16F, ElementType::kF16}};
    default: break;
  }
  return {{CUBLAS_COMPUTE_32F, ElementType::kF32}};
}

using MatrixDescriptor = Descriptor<cublasLtMatrixLayout_t>;

struct Matrix {
  const MatrixLayout& layout;
  std::byte* first;  // In the first set.
};

class CublasLtOpponent : public Opponent {
 public:
  CublasLtOpponent(const CublasLtApi& api, cublasLtHandle_t handle, Device& device,
                   const OperandSets& operands, const Arithmetic& arithmetic)
      : api_(api),
        handle_(handle),
        device_(device),
        operands_(operands),
        arithmetic_(arithmetic),
        form_(ColumnMajorProductOf(operands.problem())),
        one_(Scalar::Of(arithmetic.scale, 1)),
        zero_(Scalar::Of(arithmetic.scale, 0)) {}

  // The time of one product with the fastest algorithm found.
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
  absl::Status DescribeEpilogue();
  absl::Status DescribeFactors();
  absl::Status DescribeMatrix(const Matrix& matrix, MatrixDescriptor& layout);
  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Propose();
  absl::StatusOr<double> Time();

  const CublasLtApi& api_;
  const cublasLtHandle_t handle_;
  Device& device_;
  const OperandSets& operands_;
  const Arithmetic arithmetic_;
  const ColumnMajorProduct form_;
  const Scalar one_;
  const Scalar zero_;
  Descriptor<cublasLtMatmulDesc_t> product_{api_.destroy_product};
  MatrixDescriptor first_{api_.destroy_layout};
  MatrixDescriptor second_{api_.destroy_layout};
  MatrixDescriptor result_{api_.destroy_layout};
  DeviceBytes workspace_;
  cublasLtMatmulAlgo_t algorithm_ = {};
  int tried_ = 0;
};

absl::Status CublasLtOpponent::DescribeMatrix(const Matrix& matrix, MatrixDescriptor& layout) {
  const std::optional<cudaDataType_t> type = CudaDataTypeOf(matrix.layout.type);
  if (!type) {
    return absl::UnimplementedError(Concat("cuBLASLt: no type ", NameOf(matrix.layout.type)));
  }
  // The library's matrices are column major: its rows run along our lines.
  RETURN_IF_ERROR(LtStatus(
      api_.create_layout(layout.out(), *type, static_cast<uint64_t>(matrix.layout.line_length()),
                         static_cast<uint64_t>(matrix.layout.lines()),
                         matrix.layout.leading_dimension),
      "matrix"));
  const auto batch = static_cast<int32_t>(operands_.problem().batch);
  if (batch == 1) return absl::OkStatus();
  const int64_t stride = matrix.layout.batch_stride_bytes * 8 / BitsOf(matrix.layout.type);
  RETURN_IF_ERROR(LtStatus(
      api_.set_layout(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch)),
      "number of matrices"));
  return LtStatus(api_.set_layout(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                  &stride, sizeof(stride)),
                  "stride between matrices");
}

// The library's bias runs down the columns of its result, which is D's transpose if D is row major.
absl::Status CublasLtOpponent::DescribeEpilogue() {
  const Problem& problem = operands_.problem();
  const bool has_bias = problem.bias_axis != BiasAxis::kNone;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  switch (problem.activation) {
    case Activation::kNone:
      if (!has_bias) return absl::OkStatus();
      epilogue = CUBLASLT_EPILOGUE_BIAS;
      break;
    case Activation::kRelu:
      epilogue = has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
      break;
    case Activation::kGeluTanh:
      epilogue = has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
      break;
    default: return absl::UnimplementedError("cuBLASLt: no activation but relu and gelu-tanh");
  }
  if (has_bias && !form_.is_swapped) {
    return absl::UnimplementedError("cuBLASLt: no bias along the lines of a column-major D");
  }
  RETURN_IF_ERROR(LtStatus(
      api_.set_product(product_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)),
      "epilogue"));
  if (!has_bias) return absl::OkStatus();
  const void* const bias = operands_.bias();
  const std::optional<cudaDataType_t> type = CudaDataTypeOf(problem.bias_type);
  if (!type) return absl::UnimplementedError("cuBLASLt: no such type of a bias");
  RETURN_IF_ERROR(LtStatus(
      api_.set_product(product_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
      "bias"));
  return LtStatus(
      api_.set_product(product_.get(), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &*type, sizeof(*type)),
      "type of the bias");
}

// The library stores factors in other orders; that gives other results, but takes the same time.
absl::Status CublasLtOpponent::DescribeFactors() {
  const Problem& problem = operands_.problem();
  if (!problem.has_block_scales()) return absl::OkStatus();
#if CUBLAS_VERSION < 120900
  return absl::UnimplementedError(
      "cuBLASLt: this build is for a release without factors of blocks");
#else
  const auto describe = [this](const BlockScale& blocks, const std::byte* factors,
                               cublasLtMatmulDescAttributes_t mode_attribute,
                               cublasLtMatmulDescAttributes_t pointer_attribute) -> absl::Status {
    const bool is_vector = blocks.lines == 1 && blocks.depth == 128;
    const bool is_square = blocks.lines == 128 && blocks.depth == 128;
    if (!is_vector && !is_square) {
      return absl::UnimplementedError("cuBLASLt: no blocks but 1x128 and 128x128");
    }
    const cublasLtMatmulMatrixScale_t mode = is_square ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                       : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const void* const pointer = factors;
    RETURN_IF_ERROR(
        LtStatus(api_.set_product(product_.get(), mode_attribute, &mode, sizeof(mode)), "factors"));
    return LtStatus(api_.set_product(product_.get(), pointer_attribute, &pointer, sizeof(pointer)),
                    "factors");
  };
  const bool is_swapped = form_.is_swapped;
  RETURN_IF_ERROR(describe(is_swapped ? problem.b_blocks : problem.a_blocks,
                           is_swapped ? operands_.b_factors() : operands_.a_factors(),
                           CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                           CUBLASLT_MATMUL_DESC_A_SCALE_POINTER));
  return describe(is_swapped ? problem.a_blocks : problem.b_blocks,
                  is_swapped ? operands_.a_factors() : operands_.b_factors(),
                  CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
#endif
}

absl::Status CublasLtOpponent::Describe() {
  RETURN_IF_ERROR(DescribeMatrix(First(), first_));
  RETURN_IF_ERROR(DescribeMatrix(Second(), second_));
  RETURN_IF_ERROR(DescribeMatrix(Result(), result_));
  RETURN_IF_ERROR(LtStatus(api_.create_product(product_.out(), arithmetic_.compute_type,
                                               *CudaDataTypeOf(arithmetic_.scale)),
                           "product"));
  const cublasOperation_t first = form_.transposes_first ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = form_.transposes_second ? CUBLAS_OP_T : CUBLAS_OP_N;
  RETURN_IF_ERROR(
      LtStatus(api_.set_product(product_.get(), CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)),
               "transposition"));
  RETURN_IF_ERROR(LtStatus(
      api_.set_product(product_.get(), CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)),
      "transposition"));
  RETURN_IF_ERROR(DescribeEpilogue());
  RETURN_IF_ERROR(DescribeFactors());
  if (BitsOf(operands_.problem().a.type) == 8 && IsFloat(operands_.problem().a.type)) {
    const int8_t is_fast = operands_.problem().fast_accumulation ? 1 : 0;
    RETURN_IF_ERROR(LtStatus(api_.set_product(product_.get(), CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                              &is_fast, sizeof(is_fast)),
                             "fast accumulation"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> CublasLtOpponent::Propose() {
  Descriptor<cublasLtMatmulPreference_t> preference(api_.destroy_preference);
  RETURN_IF_ERROR(LtStatus(api_.create_preference(preference.out()), "preference"));
  const uint64_t workspace_bytes = kWorkspaceBytes;
  RETURN_IF_ERROR(
      LtStatus(api_.set_preference(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                   &workspace_bytes, sizeof(workspace_bytes)),
               "workspace"));
  const std::pair<cublasLtMatmulPreferenceAttributes_t, const std::byte*> pointers[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, First().first},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Second().first},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Result().first},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Result().first}};
  for (const auto& [attribute, pointer] : pointers) {
    const uint32_t alignment = AlignmentOf(pointer);
    RETURN_IF_ERROR(
        LtStatus(api_.set_preference(preference.get(), attribute, &alignment, sizeof(alignment)),
                 "alignment"));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(kMaxProposals);
  int count = 0;
  RETURN_IF_ERROR(LtStatus(
      api_.heuristics(handle_, product_.get(), first_.get(), second_.get(), result_.get(),
                      result_.get(), preference.get(), kMaxProposals, proposals.data(), &count),
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
  ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulHeuristicResult_t> proposals, Propose());
  ASSIGN_OR_RETURN(workspace_, device_.Allocate(kWorkspaceBytes));
  double best = std::numeric_limits<double>::infinity();
  cublasLtMatmulAlgo_t best_algorithm = {};
  for (const cublasLtMatmulHeuristicResult_t& proposal : proposals) {
    if (proposal.state != CUBLAS_STATUS_SUCCESS) continue;
    algorithm_ = proposal.algo;
    const absl::StatusOr<double> seconds = Time();
    if (absl::IsUnimplemented(seconds.status())) continue;  // Not every proposed algorithm can run.
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

class CublasLt : public Library {
 public:
  explicit CublasLt(CublasLtApi api) : api_(std::move(api)) {}
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt() override {
    if (handle_ != nullptr) api_.destroy(handle_);
  }

  absl::Status Start() {
    const cublasStatus_t status = api_.create(&handle_);
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    handle_ = nullptr;
    return absl::InternalError(
        Concat("cuBLASLt: cublasLtCreate: status ", static_cast<int>(status)));
  }

  std::string name() const override { return "cuBLASLt"; }
  std::string version() const override {
    const auto version = static_cast<int64_t>(api_.version());  // 130100
    return Concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  absl::StatusOr<std::unique_ptr<Opponent>> Prepare(Device& device,
                                                    const OperandSets& operands) override;

 private:
  const CublasLtApi api_;
  cublasLtHandle_t handle_ = nullptr;
};

absl::StatusOr<std::unique_ptr<Opponent>> CublasLt::Prepare(Device& device,
                                                            const OperandSets& operands) {
  if (operands.problem().a.is_sparse()) {
    return absl::UnimplementedError("cuBLASLt: no sparse products");
  }
  // Its documentation has no other results of tf32, but it proposes algorithms for them, some of
  // which access memory that is not theirs.
  if (operands.problem().a.type == ElementType::kTf32 &&
      operands.problem().d.type != ElementType::kF32) {
    return absl::UnimplementedError("cuBLASLt: no results of tf32 but f32");
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

}  // namespace

absl::StatusOr<std::unique_ptr<Library>> LoadCublasLt(const std::string& path) {
  ASSIGN_OR_RETURN(CublasLtApi api, CublasLtApi::Load(path));
  auto library = std::make_unique<CublasLt>(std::move(api));
  RETURN_IF_ERROR(library->Start());
  return library;
}

}  // namespace gemmd::bench
