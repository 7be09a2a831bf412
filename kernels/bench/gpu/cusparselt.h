// SPDX-License-Identifier: Apache-2.0
//
// cuSPARSELt as an opponent of kernels with a sparse A: what its own search finds fastest.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/cusparselt_api.h"
#include "kernels/bench/gpu/library.h"

namespace gemmd::bench {

class CusparseLt : public Library {
 public:
  // Errors: NotFound where there is no library; Internal where it does not start.
  static absl::StatusOr<std::unique_ptr<CusparseLt>> Load(const std::string& path);
  ~CusparseLt() override;

  std::string name() const override { return "cuSPARSELt"; }
  std::string version() const override;
  // The same A, compressed by the library beforehand. D has the problem's type, or, where the
  // library does not give it, the operands' own (of fp8: f16); how() says so.
  absl::StatusOr<std::unique_ptr<Opponent>> Prepare(Device& device,
                                                    const OperandSets& operands) override;

 private:
  explicit CusparseLt(CusparseLtApi api) : api_(std::move(api)) {}

  CusparseLtApi api_;
  CusparseLtObject handle_ = {};
  bool is_started_ = false;
};

}  // namespace gemmd::bench
