// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/cusparselt.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/bench/gpu/cuda_types.h"
#include "kernels/bench/gpu/cusparselt_api.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

constexpr float kOne = 1;
constexpr float kZero = 0;
constexpr uint32_t kAlignment = 16;  // Required by the library for every matrix.

cusparseOrder_t OrderOf(Order order) {
  return order == Order::kRowMajor ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL;
}

class CusparseLtOpponent : public Opponent {
 public:
  CusparseLtOpponent(const CusparseLtApi& api, const CusparseLtObject& handle, Device& device,
                     const OperandSets& operands, ElementType d_type)
      : api_(api), handle_(handle), device_(device), operands_(operands), d_type_(d_type) {}
  CusparseLtOpponent(const CusparseLtOpponent&) = delete;
  CusparseLtOpponent& operator=(const CusparseLtOpponent&) = delete;
  ~CusparseLtOpponent() override;

  absl::Status Prepare();

  std::string how() const override { return Concat("searched, D ", NameOf(d_type_)); }
  absl::Status Multiply(int set) override;

 private:
  absl::Status Check(cusparseStatus_t status, std::string_view what) const {
    if (status == CUSPARSE_STATUS_SUCCESS) return absl::OkStatus();
    return absl::UnimplementedError(Concat("cuSPARSELt: ", what, ": ", api_.error_name(status)));
  }
  absl::Status DescribeMatrices();
  absl::Status Plan();
  absl::Status Compress();
  absl::Status Search();
  absl::Status AllocateWorkspace();

  const CusparseLtApi& api_;
  const CusparseLtObject& handle_;
  Device& device_;
  const OperandSets& operands_;
  const ElementType d_type_;
  std::vector<CusparseLtObject*> made_;  // Matrices to destroy.
  CusparseLtObject a_;
  CusparseLtObject b_;
  CusparseLtObject d_;
  CusparseLtObject product_;
  CusparseLtObject selection_;
  CusparseLtObject plan_;
  bool has_plan_ = false;
  std::vector<DeviceBytes> compressed_;  // One per set.
  DeviceBytes workspace_;
  size_t workspace_bytes_ = 0;
};

CusparseLtOpponent::~CusparseLtOpponent() {
  if (has_plan_) api_.destroy_plan(&plan_);
  for (CusparseLtObject* matrix : made_) api_.destroy_matrix(matrix);
}

// All matrices are row major, except that D may have either order: a column-major B is the
// transpose of a row-major one for the library.
absl::Status CusparseLtOpponent::DescribeMatrices() {
  const Problem& problem = operands_.problem();
  const std::optional<cudaDataType_t> a_type = CudaDataTypeOf(problem.a.type);
  const std::optional<cudaDataType_t> b_type = CudaDataTypeOf(problem.b.type);
  const std::optional<cudaDataType_t> d_type = CudaDataTypeOf(d_type_);
  if (!a_type || !b_type || !d_type) {
    return absl::UnimplementedError(Concat("cuSPARSELt: no types ", NameOf(problem.a.type), ", ",
                                           NameOf(problem.b.type), ", ", NameOf(d_type_)));
  }
  RETURN_IF_ERROR(
      Check(api_.init_structured(&handle_, &a_, problem.m, problem.k, problem.k, kAlignment,
                                 *a_type, CUSPARSE_ORDER_ROW, CusparseLtSparsity::k50Percent),
            "a"));
  made_.push_back(&a_);
  RETURN_IF_ERROR(
      Check(api_.init_dense(&handle_, &b_, problem.b.lines(), problem.b.line_length(),
                            problem.b.leading_dimension, kAlignment, *b_type, CUSPARSE_ORDER_ROW),
            "b"));
  made_.push_back(&b_);
  RETURN_IF_ERROR(
      Check(api_.init_dense(&handle_, &d_, problem.m, problem.n, problem.d.leading_dimension,
                            kAlignment, *d_type, OrderOf(problem.d.order)),
            "d"));
  made_.push_back(&d_);
  return absl::OkStatus();
}

absl::Status CusparseLtOpponent::Plan() {
  const Problem& problem = operands_.problem();
  const cusparseOperation_t b_operation = problem.b.order == Order::kRowMajor
                                              ? CUSPARSE_OPERATION_NON_TRANSPOSE
                                              : CUSPARSE_OPERATION_TRANSPOSE;
  const CusparseLtComputeType compute_type =
      IsInteger(problem.a.type) ? CusparseLtComputeType::k32I : CusparseLtComputeType::k32F;
  RETURN_IF_ERROR(Check(api_.init_product(&handle_, &product_, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                          b_operation, &a_, &b_, &d_, &d_, compute_type),
                        "product"));
  RETURN_IF_ERROR(
      Check(api_.init_selection(&handle_, &selection_, &product_, CusparseLtAlgorithm::kDefault),
            "selection"));
  RETURN_IF_ERROR(Check(api_.init_plan(&handle_, &plan_, &product_, &selection_), "plan"));
  has_plan_ = true;
  return absl::OkStatus();
}

absl::Status CusparseLtOpponent::Compress() {
  const std::vector<std::byte>& dense = operands_.host().dense_a;
  const auto dense_bytes = static_cast<int64_t>(dense.size());
  ASSIGN_OR_RETURN(const DeviceBytes a, device_.Allocate(dense_bytes));
  RETURN_IF_ERROR(device_.Write(a.get(), dense.data(), dense_bytes));
  size_t bytes = 0;
  size_t buffer_bytes = 0;
  RETURN_IF_ERROR(
      Check(api_.compressed_bytes(&handle_, &plan_, &bytes, &buffer_bytes), "compressed size"));
  ASSIGN_OR_RETURN(const DeviceBytes buffer, device_.Allocate(static_cast<int64_t>(buffer_bytes)));
  for (int set = 0; set < operands_.count(); ++set) {
    ASSIGN_OR_RETURN(DeviceBytes compressed, device_.Allocate(static_cast<int64_t>(bytes)));
    RETURN_IF_ERROR(Check(
        api_.compress(&handle_, &plan_, a.get(), compressed.get(), buffer.get(), device_.stream()),
        "compress"));
    compressed_.push_back(std::move(compressed));
  }
  return device_.Wait();
}

// The workspace of a plan may change with its algorithm.
absl::Status CusparseLtOpponent::AllocateWorkspace() {
  size_t bytes = 0;
  RETURN_IF_ERROR(Check(api_.workspace_bytes(&handle_, &plan_, &bytes), "workspace"));
  bytes = std::max(bytes, size_t{64} << 20);
  if (bytes <= workspace_bytes_) return absl::OkStatus();
  workspace_bytes_ = bytes;
  ASSIGN_OR_RETURN(workspace_, device_.Allocate(static_cast<int64_t>(bytes)));
  return absl::OkStatus();
}

absl::Status CusparseLtOpponent::Search() {
  RETURN_IF_ERROR(AllocateWorkspace());
  CUstream_st* stream = device_.stream();
  RETURN_IF_ERROR(
      Check(api_.search(&handle_, &plan_, &kOne, compressed_[0].get(), operands_.b(0), &kZero,
                        operands_.d(0), operands_.d(0), workspace_.get(), &stream, 1),
            "search"));
  RETURN_IF_ERROR(device_.Wait());
  return AllocateWorkspace();
}

absl::Status CusparseLtOpponent::Prepare() {
  RETURN_IF_ERROR(DescribeMatrices());
  RETURN_IF_ERROR(Plan());
  RETURN_IF_ERROR(Compress());
  RETURN_IF_ERROR(Search());
  RETURN_IF_ERROR(Multiply(0));
  return device_.Wait();
}

absl::Status CusparseLtOpponent::Multiply(int set) {
  CUstream_st* stream = device_.stream();
  std::byte* const d = operands_.d(set);
  return Check(api_.multiply(&handle_, &plan_, &kOne, compressed_[static_cast<size_t>(set)].get(),
                             operands_.b(set), &kZero, d, d, workspace_.get(), &stream, 1),
               "multiply");
}

class CusparseLt : public Library {
 public:
  explicit CusparseLt(CusparseLtApi api) : api_(std::move(api)) {}
  CusparseLt(const CusparseLt&) = delete;
  CusparseLt& operator=(const CusparseLt&) = delete;
  ~CusparseLt() override {
    if (is_started_) api_.destroy(&handle_);
  }

  absl::Status Start() {
    const cusparseStatus_t status = api_.init(&handle_);
    is_started_ = status == CUSPARSE_STATUS_SUCCESS;
    if (is_started_) return absl::OkStatus();
    return absl::InternalError(Concat("cuSPARSELt: cusparseLtInit: ", api_.error_name(status)));
  }

  std::string name() const override { return "cuSPARSELt"; }
  std::string version() const override {
    int version = 0;  // 801: 0.8.1
    if (api_.version(&handle_, &version) != CUSPARSE_STATUS_SUCCESS) return "unknown";
    return Concat(version / 1000, ".", version / 100 % 10, ".", version % 100);
  }
  absl::StatusOr<std::unique_ptr<Opponent>> Prepare(Device& device,
                                                    const OperandSets& operands) override;

 private:
  const CusparseLtApi api_;
  CusparseLtObject handle_ = {};
  bool is_started_ = false;
};

absl::StatusOr<std::unique_ptr<Opponent>> CusparseLt::Prepare(Device& device,
                                                              const OperandSets& operands) {
  const Problem& problem = operands.problem();
  if (!problem.a.is_sparse()) return absl::UnimplementedError("cuSPARSELt: a is dense");
  if (!problem.is_plain()) return absl::UnimplementedError("cuSPARSELt: asked for products alone");
  std::vector<ElementType> d_types = {problem.d.type};
  // A narrower D needs no more memory than the sets have.
  if (problem.d.type == ElementType::kF32 && BitsOf(problem.a.type) <= 16) {
    d_types.push_back(BitsOf(problem.a.type) == 16 ? problem.a.type : ElementType::kF16);
  }
  absl::Status status;
  for (const ElementType d_type : d_types) {
    auto opponent = std::make_unique<CusparseLtOpponent>(api_, handle_, device, operands, d_type);
    status = opponent->Prepare();
    if (status.ok()) return opponent;
    if (!absl::IsUnimplemented(status)) return status;
  }
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Library>> LoadCusparseLt(const std::string& path) {
  ASSIGN_OR_RETURN(CusparseLtApi api, CusparseLtApi::Load(path));
  auto library = std::make_unique<CusparseLt>(std::move(api));
  RETURN_IF_ERROR(library->Start());
  return library;
}

}  // namespace gemmd::bench
