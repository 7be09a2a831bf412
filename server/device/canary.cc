// SPDX-License-Identifier: Apache-2.0
#include "server/device/canary.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/catalog.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/mutex.h"

namespace gemmd {
namespace {

// Odd on purpose, so that tails are computed too.
constexpr int64_t kM = 19;
constexpr int64_t kN = 23;
constexpr int64_t kK = 67;

// Small enough that every partial sum is exact in any type that accumulates.
int64_t AValue(int64_t i, int64_t j) { return (i * 3 + j * 5) % 7 - 3; }
int64_t BValue(int64_t i, int64_t j) { return (i * 2 + j * 11) % 5 - 2; }

template <typename Value>
std::string PackedMatrix(ElementType type, int64_t rows, int64_t columns, Value value) {
  const int64_t line_bytes = columns * BitsOf(type) / 8;
  std::string bytes(static_cast<size_t>(rows * line_bytes), '\0');
  for (int64_t i = 0; i < rows; ++i) {
    std::byte* line = reinterpret_cast<std::byte*>(bytes.data()) + i * line_bytes;
    for (int64_t j = 0; j < columns; ++j) {
      StoreBits(type, line, j, Encode(type, static_cast<double>(value(i, j))));
    }
  }
  return bytes;
}

int64_t ExpectedValue(int64_t i, int64_t j) {
  int64_t sum = 0;
  for (int64_t l = 0; l < kK; ++l) sum += AValue(i, l) * BValue(l, j);
  return sum;
}

// What one canary needs, shared with the device's callback, which may come after the deadline.
struct Attempt {
  std::string a;
  std::string b;
  SourcePieces pieces;

  Mutex mutex;
  std::optional<JobOutcome> outcome ABSL_GUARDED_BY(mutex);
};

bool HasKernelFor(const Device& device, ElementType type) {
  const absl::Span<const Kernel> kernels = Catalog(device.info().kind);
  return std::any_of(kernels.begin(), kernels.end(), [&](const Kernel& kernel) {
    return kernel.a == type && kernel.b == type && kernel.available(device.profile().target).ok();
  });
}

absl::Status RunOne(Device& device, ElementType type, absl::Duration timeout) {
  Job job;
  job.problem.m = kM;
  job.problem.n = kN;
  job.problem.k = kK;
  ASSIGN_OR_RETURN(job.problem.accumulation, DefaultAccumulation(type, type));
  const ElementType d_type = job.problem.accumulation;
  ASSIGN_OR_RETURN(job.problem.a, TightLayout("a", type, Order::kRowMajor, kM, kK));
  ASSIGN_OR_RETURN(job.problem.b, TightLayout("b", type, Order::kRowMajor, kK, kN));
  ASSIGN_OR_RETURN(job.problem.d, TightLayout("d", d_type, Order::kRowMajor, kM, kN));
  ASSIGN_OR_RETURN(job.kernel,
                   Choose(Catalog(device.info().kind), job.problem, {}, device.profile()));
  ASSIGN_OR_RETURN(job.workspace_bytes, job.kernel->workspace_bytes(job.problem));
  job.d_bytes = BytesWritten(job.problem);

  auto attempt = std::make_shared<Attempt>();
  attempt->a = PackedMatrix(type, kM, kK, AValue);
  attempt->b = PackedMatrix(type, kK, kN, BValue);
  job.a = attempt->pieces.Add(PieceOf(attempt->a));
  job.b = attempt->pieces.Add(PieceOf(attempt->b));
  device.Submit(job, [attempt](JobOutcome outcome) {
    MutexLock lock(&attempt->mutex);
    attempt->outcome = std::move(outcome);
  });
  MutexLock lock(&attempt->mutex);
  const auto is_done = [&attempt]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(attempt->mutex) {
    return attempt->outcome.has_value();
  };
  if (!attempt->mutex.AwaitWithTimeout(is_done, timeout)) {
    return absl::DeadlineExceededError(
        Concat("canary: no answer within ", absl::FormatDuration(timeout)));
  }
  RETURN_IF_ERROR(attempt->outcome->status);
  const absl::Span<const std::byte> d = attempt->outcome->d.bytes();
  if (d != PieceOf(PackedMatrix(d_type, kM, kN, ExpectedValue))) {
    return absl::DataLossError(
        Concat("canary: kernel ", job.kernel->name, " gave a wrong product"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCanary(Device& device, absl::Duration timeout) {
  // Tensor cores multiply no f32.
  const ElementType single =
      HasKernelFor(device, ElementType::kF32) ? ElementType::kF32 : ElementType::kF16;
  for (const ElementType type : {single, ElementType::kF64, ElementType::kS8}) {
    if (HasKernelFor(device, type)) RETURN_IF_ERROR(RunOne(device, type, timeout));
  }
  return absl::OkStatus();
}

}  // namespace gemmd
