// SPDX-License-Identifier: Apache-2.0
//
// Products of one simulated kernel with random operands in their own memory, for tests of joining.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"
#include "server/device/job.h"
#include "server/device/operands.h"
#include "tests/testing/random_source.h"

namespace gemmd {

inline Target SimulatedH100() { return {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}; }

inline const Kernel& SimulatedKernel(std::string_view name) {
  for (const Kernel& kernel : Catalog(DeviceKind::kSim)) {
    if (kernel.name == name) return kernel;
  }
  std::abort();
}

inline std::vector<std::byte> RandomBytes(RandomSource& random, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Bits());
  return bytes;
}

// Not movable, because the job points into it.
class JoinableProduct {
 public:
  struct Shape {
    int64_t m = 3;
    int64_t n = 5;
    int64_t k = 7;
    int64_t batch = 1;
  };

  // B is `shared_b` if that is given, otherwise the product's own random bytes.
  JoinableProduct(RandomSource& random, const Kernel& kernel, Shape shape,
                  const std::vector<std::byte>* shared_b = nullptr) {
    Problem& problem = job.problem;
    problem.m = shape.m;
    problem.n = shape.n;
    problem.k = shape.k;
    problem.batch = shape.batch;
    problem.accumulation = kernel.recipe.accumulation;
    problem.a = *TightLayout("a", kernel.a, Order::kRowMajor, shape.m, shape.k);
    problem.b = *TightLayout("b", kernel.b, Order::kColumnMajor, shape.k, shape.n);
    problem.d = *TightLayout("d", ElementType::kF32, Order::kRowMajor, shape.m, shape.n);
    problem.c = problem.d;
    a_ = RandomBytes(random, shape.batch * problem.a.batch_stride_bytes);
    if (shared_b == nullptr) b_ = RandomBytes(random, shape.batch * problem.b.batch_stride_bytes);
    c_ = RandomBytes(random, shape.batch * problem.c.batch_stride_bytes);
    job.kernel = &kernel;
    // In two pieces, as messages arrive.
    const size_t half = a_.size() / 2;
    job.a = pieces_.Add(PieceList{Piece(a_).first(half), Piece(a_).subspan(half)});
    job.b = pieces_.Add(shared_b == nullptr ? Piece(b_) : Piece(*shared_b));
    Complete();
  }

  // Adds an epilogue: beta * C and a bias along n.
  void AddEpilogue(const std::vector<std::byte>& bias) {
    job.problem.beta = 0.5;
    job.problem.bias_axis = BiasAxis::kColumns;
    job.c = pieces_.Add(Piece(c_));
    job.bias = pieces_.Add(Piece(bias));
    Complete();
  }

  Job job;

 private:
  void Complete() {
    job.d_bytes = BytesWritten(job.problem);
    job.workspace_bytes = job.kernel->workspace_bytes(job.problem).value();
  }

  std::vector<std::byte> a_;
  std::vector<std::byte> b_;
  std::vector<std::byte> c_;
  SourcePieces pieces_;
};

// The D of a job, computed here into memory full of `poison`.
inline std::vector<std::byte> ResultOf(const Job& job, std::byte poison) {
  constexpr size_t kAlignment = 64;
  std::vector<std::byte> d(static_cast<size_t>(job.d_bytes), poison);
  std::vector<std::byte> memory(static_cast<size_t>(job.workspace_bytes) + kAlignment, poison);
  void* start = memory.data();
  size_t space = memory.size();
  std::align(kAlignment, static_cast<size_t>(job.workspace_bytes), start, space);
  WarmMemory copies(0);
  Gathering gathering(copies, /*threads=*/1);
  const GemmArgs args =
      ArgsAt(job.problem, SimulatedH100(), gathering.TakeAll(job, nullptr).value(), d.data(),
             absl::MakeSpan(static_cast<std::byte*>(start), space));
  if (!job.kernel->launch(args).ok()) std::abort();
  return d;
}

}  // namespace gemmd
