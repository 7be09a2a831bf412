// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt as an opponent: the best of what its heuristics propose, each timed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/cublaslt_api.h"
#include "kernels/bench/gpu/library.h"

namespace gemmd::bench {

class CublasLt : public Library {
 public:
  // Errors: NotFound where there is no library; Internal where it does not start.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Load(const std::string& path);
  ~CublasLt() override;

  std::string name() const override { return "cuBLASLt"; }
  std::string version() const override;
  // Same operands, same layouts, same type of D; of fp8 with fast accumulation. An f16 D is added
  // up in f16 or in f32, whichever is faster.
  absl::StatusOr<std::unique_ptr<Opponent>> Prepare(Device& device,
                                                    const OperandSets& operands) override;

 private:
  explicit CublasLt(CublasLtApi api) : api_(std::move(api)) {}

  CublasLtApi api_;
  void* handle_ = nullptr;
};

// How the library, to whom all matrices are column major, is asked for a product: D or its
// transpose, from A and B or from theirs in the other order.
struct ColumnMajorProduct {
  bool is_swapped = false;  // B comes first, A second.
  bool transposes_first = false;
  bool transposes_second = false;

  friend bool operator==(const ColumnMajorProduct&, const ColumnMajorProduct&) = default;
};
ColumnMajorProduct ColumnMajorProductOf(const Problem& problem);

}  // namespace gemmd::bench
