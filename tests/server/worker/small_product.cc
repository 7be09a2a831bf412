// SPDX-License-Identifier: Apache-2.0
#include "tests/server/worker/small_product.h"

#include <cstring>
#include <memory>
#include <utility>

#include "kernels/kernel.h"

namespace gemmd {
namespace {

int64_t AValue(int64_t i, int64_t l) { return (i * 7 + l * 3) % 11 - 5; }
int64_t BValue(int64_t l, int64_t j) { return (l * 5 + j * 2) % 13 - 6; }

template <typename Value>
std::string Packed(int64_t rows, int64_t columns, Value value) {
  std::string bytes(static_cast<size_t>(rows * columns * 2), '\0');
  for (int64_t i = 0; i < rows * columns; ++i) {
    const double number = static_cast<double>(value(i / columns, i % columns));
    StoreBits(ElementType::kF16, reinterpret_cast<std::byte*>(bytes.data()), i,
              Encode(ElementType::kF16, number));
  }
  return bytes;
}

}  // namespace

SmallProduct::SmallProduct(int64_t m, int64_t n, int64_t k)
    : a_(Packed(m, k, AValue)), b_(Packed(k, n, BValue)) {
  problem_.m = m;
  problem_.n = n;
  problem_.k = k;
  problem_.a = TightLayout("a", ElementType::kF16, Order::kRowMajor, m, k).value();
  problem_.b = TightLayout("b", ElementType::kF16, Order::kRowMajor, k, n).value();
  problem_.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, m, n).value();
  a_source_ = pieces_.Add(PieceOf(a_));
  b_source_ = pieces_.Add(PieceOf(b_));
}

Job SmallProduct::JobFor(const Device& device) {
  Job job;
  job.problem = problem_;
  job.kernel =
      Choose(Catalog(device.info().kind), problem_, Constraints(), device.profile()).value();
  job.workspace_bytes = job.kernel->workspace_bytes(problem_).value();
  job.predicted = Predict(*job.kernel, problem_, device.profile());
  job.d_bytes = BytesWritten(problem_);
  job.a = a_source_;
  job.b = b_source_;
  d_.assign(static_cast<size_t>(job.d_bytes), 'x');
  job.d.memory = reinterpret_cast<std::byte*>(d_.data());
  return job;
}

std::future<JobOutcome> StartJob(Device& device, const Job& job) {
  auto promise = std::make_shared<std::promise<JobOutcome>>();
  std::future<JobOutcome> outcome = promise->get_future();
  device.Submit(job, [promise](JobOutcome result) { promise->set_value(std::move(result)); });
  return outcome;
}

std::future<JobOutcome> SmallProduct::Start(Device& device, JobId id) {
  Job job = JobFor(device);
  job.id = id;
  return StartJob(device, job);
}

std::string SmallProduct::Expected() const {
  std::string bytes;
  for (int64_t i = 0; i < problem_.m; ++i) {
    for (int64_t j = 0; j < problem_.n; ++j) {
      int64_t sum = 0;
      for (int64_t l = 0; l < problem_.k; ++l) sum += AValue(i, l) * BValue(l, j);
      const auto element = static_cast<float>(sum);
      bytes.append(reinterpret_cast<const char*>(&element), sizeof(element));
    }
  }
  return bytes;
}

}  // namespace gemmd
