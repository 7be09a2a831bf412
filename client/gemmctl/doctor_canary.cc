// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/doctor_canary.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/matrix/matrix_reader.h"
#include "client/matrix/reference.h"
#include "client/matrix/splitmix.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_codec.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"

namespace gemmd {
namespace {

constexpr int64_t kM = 67, kN = 45, kK = 93;
constexpr v1::ElementType kType = v1::ELEMENT_TYPE_F32;

constexpr char kRepair[] =
    "keep callers from the device (--devices), look into the daemon's log and have the hardware "
    "checked";

// -7 to 7 without even numbers: no product is 0, so that no sum is -0 in one order alone.
v1::Operand OddIntegers(int64_t rows, int64_t columns, SplitMix& random) {
  v1::Operand operand;
  operand.set_type(v1::ELEMENT_TYPE_F16);
  const int64_t count = rows * columns;
  std::string bytes(static_cast<size_t>(count) * 2, '\0');
  for (int64_t i = 0; i < count; ++i) {
    const int value = static_cast<int>(random.Next() % 8) * 2 - 7;
    StoreElement(operand.type(), ElementPattern(operand.type(), value), i, bytes.data());
  }
  operand.set_data(std::move(bytes));
  return operand;
}

// An answer, and when it came.
struct Answer {
  absl::StatusOr<v1::MultiplyResponse> response = absl::UnknownError("");
  absl::Time end;
};

// Where answers arrive; shared with calls that outlive the wait.
struct Answers {
  absl::Mutex mutex;
  std::vector<std::optional<Answer>> all ABSL_GUARDED_BY(mutex);
  size_t missing ABSL_GUARDED_BY(mutex) = 0;

  bool AreComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return missing == 0; }
};

Check Judge(const Canary& canary, const Answer& answer, absl::Duration took, Check check) {
  if (!answer.response.ok()) {
    check.state = CheckState::kFail;
    check.seen = absl::StrCat("no answer: ", answer.response.status().message());
    check.advice = absl::StrCat("see `gemmctl top` for what runs there, and the daemon's log for ",
                                check.name.substr(check.name.find(' ') + 1));
    return check;
  }
  const v1::MultiplyResponse& response = *answer.response;
  const std::string fault = FaultOf(canary, response);
  if (!fault.empty()) {
    check.state = CheckState::kFail;
    check.seen = absl::StrCat(fault, ", by ", response.kernel());
    check.advice = kRepair;
    return check;
  }
  check.seen = absl::StrCat("right to the bit by ", response.kernel(), " in ",
                            FormatNanoseconds(absl::ToInt64Nanoseconds(took)), " (compute ",
                            FormatNanoseconds(response.timing().compute_ns()), ")");
  return check;
}

}  // namespace

Canary::Canary(uint64_t seed) {
  SplitMix random(seed);
  request.set_m(kM);
  request.set_n(kN);
  request.set_k(kK);
  *request.mutable_a() = OddIntegers(kM, kK, random);
  *request.mutable_b() = OddIntegers(kK, kN, random);
  request.mutable_d()->set_type(kType);
  std::vector<int64_t> rows(kM);
  std::iota(rows.begin(), rows.end(), 0);
  for (const ReferenceElement& element : Reference(request).Rows(0, rows)) {
    want.push_back(ElementPattern(kType, element.value));
  }
}

std::string FaultOf(const Canary& canary, const v1::MultiplyResponse& answer) {
  const auto product = MultiplyResult::FromResponse(answer);
  if (!product.ok()) return absl::StrCat("no product: ", product.status().message());
  if (product->type() != kType || product->rows() != kM || product->columns() != kN ||
      product->batch() != 1 || product->data().size() != canary.want.size() * sizeof(float)) {
    return absl::StrCat("D is ", product->rows(), " x ", product->columns(), ", want ", kM, " x ",
                        kN, " of f32");
  }
  const auto data = product->data();
  const absl::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size());
  size_t wrong = 0;
  std::string first;
  for (size_t i = 0; i < canary.want.size(); ++i) {
    const uint64_t got = LoadElement(kType, bytes, static_cast<int64_t>(i));
    if (got == canary.want[i]) continue;
    if (wrong++ > 0) continue;
    first = absl::StrFormat("[%d, %d] has 0x%x, want 0x%x", static_cast<int64_t>(i) / kN,
                            static_cast<int64_t>(i) % kN, got, canary.want[i]);
  }
  if (wrong == 0) return "";
  return absl::StrCat(wrong, " of ", canary.want.size(), " elements are wrong: ", first);
}

absl::StatusOr<std::vector<v1::ExplainResponse>> ExplainCanary(
    Client& client, const v1::ListDevicesResponse& devices, absl::Time deadline) {
  v1::MultiplyRequest request = Canary(0).request;
  std::vector<v1::ExplainResponse> explanations;
  for (const v1::Device& device : devices.devices()) {
    if (!device.ready()) continue;
    request.set_device(device.name());
    auto explanation = client.Explain(
        request, {.timeout = std::max(deadline - absl::Now(), absl::Milliseconds(1))});
    if (!explanation.ok()) return explanation.status();
    explanations.push_back(*std::move(explanation));
  }
  return explanations;
}

std::vector<Check> CheckDevices(Client& client, const v1::ListDevicesResponse& devices,
                                uint64_t seed, absl::Time deadline) {
  const Canary canary(seed);
  const absl::Time start = absl::Now();
  auto answers = std::make_shared<Answers>();
  std::vector<Check> checks;
  std::vector<AsyncCall> calls;
  {
    absl::MutexLock lock(&answers->mutex);
    answers->all.resize(static_cast<size_t>(devices.devices_size()));
  }
  for (int i = 0; i < devices.devices_size(); ++i) {
    const v1::Device& device = devices.devices(i);
    Check& check = checks.emplace_back();
    check.name = absl::StrCat("canary ", device.name());
    if (!device.ready()) {
      check.state = CheckState::kFail;
      check.seen = absl::StrCat("the device is not ready: ", device.not_ready_reason());
      check.advice =
          absl::StrCat("see event=device_not_ready in the daemon's log; `gemmctl restart-device ",
                       device.name(), "` starts the worker of a GPU anew");
      continue;
    }
    v1::MultiplyRequest request = canary.request;
    request.set_device(device.name());
    {
      absl::MutexLock lock(&answers->mutex);
      ++answers->missing;
    }
    calls.push_back(client.MultiplyAsync(
        std::move(request),
        [answers, i](absl::StatusOr<v1::MultiplyResponse> response) {
          absl::MutexLock lock(&answers->mutex);
          answers->all[static_cast<size_t>(i)] = Answer{std::move(response), absl::Now()};
          --answers->missing;
        },
        {.timeout = std::max(deadline - start, absl::Milliseconds(1)), .traceparent = {}}));
  }
  absl::MutexLock lock(&answers->mutex);
  // Each call has a deadline of its own, and ends by it.
  answers->mutex.Await(absl::Condition(&*answers, &Answers::AreComplete));
  for (size_t i = 0; i < checks.size(); ++i) {
    if (!answers->all[i].has_value()) continue;
    const Answer& answer = *answers->all[i];
    checks[i] = Judge(canary, answer, answer.end - start, std::move(checks[i]));
  }
  return checks;
}

}  // namespace gemmd
