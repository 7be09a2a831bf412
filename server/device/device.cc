// SPDX-License-Identifier: Apache-2.0
#include "server/device/device.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/log.h"
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

// The state of one canary, shared with the device's callback, which may come after the deadline.
struct Attempt {
  std::unique_ptr<CanaryProduct> product;

  Mutex mutex;
  std::optional<JobOutcome> outcome ABSL_GUARDED_BY(mutex);
};

bool HasKernelFor(const Device& device, ElementType type) {
  const absl::Span<const Kernel> kernels = Catalog(device.info().kind);
  return std::any_of(kernels.begin(), kernels.end(), [&](const Kernel& kernel) {
    return kernel.a == type && kernel.b == type && kernel.available(device.profile().target).ok();
  });
}

absl::StatusOr<Problem> CanaryProblem(ElementType a, ElementType b) {
  Problem problem;
  problem.m = kM;
  problem.n = kN;
  problem.k = kK;
  ASSIGN_OR_RETURN(problem.accumulation, DefaultAccumulation(a, b));
  ASSIGN_OR_RETURN(problem.a, TightLayout("a", a, Order::kRowMajor, kM, kK));
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", b, Order::kRowMajor, kK, kN));
  ASSIGN_OR_RETURN(problem.d, TightLayout("d", problem.accumulation, Order::kRowMajor, kM, kN));
  return problem;
}

// Builds the canary product of a problem that the kernel supports.
absl::StatusOr<std::unique_ptr<CanaryProduct>> CanaryOf(const Kernel& kernel,
                                                        const Problem& problem) {
  auto product = std::make_unique<CanaryProduct>();
  Job& job = product->job;
  job.problem = problem;
  job.kernel = &kernel;
  ASSIGN_OR_RETURN(job.workspace_bytes, kernel.workspace_bytes(problem));
  job.d_bytes = BytesWritten(problem);
  product->a = PackedMatrix(problem.a.type, kM, kK, AValue);
  product->b = PackedMatrix(problem.b.type, kK, kN, BValue);
  job.a = product->pieces.Add(PieceOf(product->a));
  job.b = product->pieces.Add(PieceOf(product->b));
  return product;
}

absl::Status RunOne(Device& device, ElementType type, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const Problem problem, CanaryProblem(type, type));
  ASSIGN_OR_RETURN(const Kernel* const kernel,
                   Choose(Catalog(device.info().kind), problem, {}, device.profile()));
  auto attempt = std::make_shared<Attempt>();
  ASSIGN_OR_RETURN(attempt->product, CanaryOf(*kernel, problem));
  device.Submit(attempt->product->job, [attempt](JobOutcome outcome) {
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
  return attempt->product->Check(attempt->outcome->d.bytes());
}

std::string ReasonAfterLosses(ShapeClass shape, std::string_view device) {
  return Concat("kernel: got one that is refused for ", NameOf(shape), " products on ", device,
                " because two such products ended its worker (`gemmctl restart-device ", device,
                "` clears this), want another one");
}

}  // namespace

void Device::AddLoss(const Kernel& kernel, const Problem& problem) {
  if (!trust_.AddLoss(kernel, problem)) return;
  spdlog::error("event=kernel_refused device={} kernel={} class={} problem={}",
                LogValue(info().name), kernel.name, LogValue(NameOf(ShapeClassOf(problem))),
                LogValue(Describe(problem)));
}

bool DeviceTrust::AddWrongAnswer(const Kernel& kernel) {
  MutexLock lock(&mutex_);
  if (std::find(quarantined_.begin(), quarantined_.end(), &kernel) == quarantined_.end()) {
    quarantined_.push_back(&kernel);
  }
  return ++wrong_answers_ == kMaxWrongAnswers + 1;
}

bool DeviceTrust::AddLoss(const Kernel& kernel, const Problem& problem) {
  MutexLock lock(&mutex_);
  has_losses_ = true;
  return ++losses_[{&kernel, ShapeClassOf(problem)}] == kMaxLosses + 1;
}

void DeviceTrust::ForgetLosses() {
  MutexLock lock(&mutex_);
  losses_.clear();
  has_losses_ = false;
}

absl::Status DeviceTrust::CheckLosses(const Kernel& kernel, const Problem& problem,
                                      std::string_view device) const {
  if (!has_losses_) return absl::OkStatus();
  {
    MutexLock lock(&mutex_);
    const auto found = losses_.find({&kernel, ShapeClassOf(problem)});
    if (found == losses_.end() || found->second <= kMaxLosses) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      Concat(kernel.name, ": ", ReasonAfterLosses(ShapeClassOf(problem), device)));
}

std::vector<DistrustedKernel> DeviceTrust::distrusted(const Problem& problem,
                                                      std::string_view device) const {
  std::vector<DistrustedKernel> distrusted;
  if (wrong_answers_ == 0 && !has_losses_) return distrusted;
  const ShapeClass shape = ShapeClassOf(problem);
  MutexLock lock(&mutex_);
  for (const Kernel* const kernel : quarantined_) {
    distrusted.push_back(
        {kernel, absl::UnimplementedError("kernel: got one that is quarantined on this device "
                                          "because it gave a wrong answer, want one that is not")});
  }
  for (const auto& [key, losses] : losses_) {
    if (key.second != shape || losses <= kMaxLosses) continue;
    distrusted.push_back(
        {key.first, absl::FailedPreconditionError(ReasonAfterLosses(shape, device))});
  }
  return distrusted;
}

absl::Status DeviceTrust::status() const {
  const int64_t count = wrong_answers_;
  if (count <= kMaxWrongAnswers) return absl::OkStatus();
  return absl::UnavailableError(Concat("it gave ", count, " wrong answers"));
}

void Device::Recompute(const Job&, DeviceMemory::Recomputation, DeviceMemory::RecomputeDone done) {
  std::move(done)(absl::UnimplementedError("device: no memory of its own"));
}

absl::Status ServedDevice::readiness() const {
  const absl::Status why = canary.ok() ? device->trust().status() : canary;
  if (why.ok()) return device->readiness();
  return absl::UnavailableError(
      Concat("device: ", device->info().name, " is not ready: ", std::string(why.message())));
}

absl::Status CanaryProduct::Check(absl::Span<const std::byte> d) const {
  const ElementType type = job.problem.d.type;
  bool is_right = static_cast<int64_t>(d.size()) == job.d_bytes;
  for (int64_t i = 0; is_right && i < kM * kN; ++i) {
    // Compared by value: a kernel that rounds down yields -0 for a zero difference.
    const double got = Decode(type, LoadBits(type, d.data(), i));
    is_right = got == static_cast<double>(ExpectedValue(i / kN, i % kN));
  }
  if (is_right) return absl::OkStatus();
  return absl::DataLossError(Concat("canary: kernel ", job.kernel->name, " gave a wrong product"));
}

absl::StatusOr<std::unique_ptr<CanaryProduct>> MakeCanary(const Kernel& kernel) {
  // Its values are signed integers that the narrowest types and f16 sums hold.
  const auto holds = [](ElementType type) {
    return FactsOf(type).is_signed && BitsOf(type) >= 4 && type != ElementType::kS32;
  };
  if (!holds(kernel.a) || !holds(kernel.b)) {
    return absl::UnimplementedError(
        "canary: got a kernel for unsigned types, want a kernel for signed types");
  }
  ASSIGN_OR_RETURN(Problem problem, CanaryProblem(kernel.a, kernel.b));
  if (kernel.recipe.accumulation == ElementType::kF16) problem.accumulation = ElementType::kF16;
  RETURN_IF_ERROR(kernel.supports(problem));
  return CanaryOf(kernel, problem);
}

absl::Status RunCanary(Device& device, absl::Duration timeout) {
  // Tensor cores do not multiply f32.
  const ElementType single =
      HasKernelFor(device, ElementType::kF32) ? ElementType::kF32 : ElementType::kF16;
  for (const ElementType type : {single, ElementType::kF64, ElementType::kS8}) {
    if (HasKernelFor(device, type)) RETURN_IF_ERROR(RunOne(device, type, timeout));
  }
  return absl::OkStatus();
}

}  // namespace gemmd
