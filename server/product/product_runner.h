// SPDX-License-Identifier: Apache-2.0
//
// The life of one product between the wire and the devices, the same for unary calls and streams:
// choose device and kernel, admit, queue; then tell how it went.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device/device.h"
#include "server/product/admission.h"
#include "server/product/answer_checker.h"
#include "server/product/counts.h"
#include "server/product/prediction.h"
#include "server/product/product.h"
#include "server/product/scheduler.h"
#include "server/product/spans.h"
#include "server/product/verification.h"
#include "server/system/clock.h"

namespace gemmd {

// How answers are checked, and what is known of the chips that gave wrong ones. Borrowed.
struct VerifySetup {
  VerifyOptions options;
  IncidentLog* log = nullptr;  // Null: incidents are not kept.
  std::function<std::string(size_t device)> chip_state;
};

class ProductRunner {
 public:
  // Borrows everything; the first device is the default one.
  ProductRunner(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                Admission& admission, Stats& stats, const Clock& clock, int64_t max_message_bytes,
                TensorStore* tensors = nullptr, VerifySetup verify = {},
                SpanExport* spans = nullptr);

  // Those that requests may name; only where there are any.
  TensorStore& tensors() const { return *tensors_; }

  // Room for a message that has arrived and may ask for a product. Its ticket is for Start.
  // Errors: Unavailable while the server drains, ResourceExhausted where there is no room.
  // Threads: any.
  absl::StatusOr<Admission::Ticket> Hold(int64_t message_bytes, const Arrival& arrival);

  // A number for a product that is started later, by which it can be cancelled. Threads: any.
  JobId NewId() { return scheduler_.NewId(); }

  // Starts a product whose id, job, wishes, arrival and `answer` are set. If this returns OK, the
  // product is taken, and its `answer` is called exactly once from another thread (or from Cancel);
  // operands must live until then. The product's ticket holds the bytes of the message, and gets
  // those of result and scratch. A request that could not be parsed, as `parsed` says, is counted
  // and logged here like any other refusal, and its status is returned.
  //
  // Errors: as Gemm.Multiply of the wire contract; the caller then keeps the product, and `answer`
  // is never called. Threads: any.
  absl::Status Start(std::unique_ptr<Product>& product, absl::Status parsed);

  // The same for one of several products that came together: it waits in the list until that is
  // started, and counts among its caller's products meanwhile. Only then is it known whether it is
  // let in, and its `answer` may tell that it is not.
  absl::Status StartWith(Company& company, std::unique_ptr<Product>& product, absl::Status parsed);
  void StartTogether(Company company);

  // Drops the product where it waits, and aborts it where it runs or is checked. One that goes from
  // the one to the other at this moment may go on to the end of its check.
  void Cancel(JobId id) { Cancel(absl::MakeConstSpan(&id, 1)); }
  void Cancel(absl::Span<const JobId> ids) {
    scheduler_.Cancel(ids);
    checker_.Cancel(ids);
  }
  // Ends all checks of answers early, and those that come later.
  void StopChecks() { checker_.Stop(); }

  // Where a product runs: on the device that it names, otherwise on the first device that has a
  // kernel for it, or on an equal GPU that has more of its tensors. Where no device has one, the
  // device that best says why.
  struct Placement {
    const ServedDevice* served = nullptr;
    const Kernel* kernel = nullptr;  // Null where no kernel of the device runs the product.
    PredictedTime predicted = {};
    std::vector<DistrustedKernel> distrusted = {};  // The device's, for such products.
  };

  // As Admission::CheckQuestion.
  absl::Status CheckQuestion() const { return admission_.CheckQuestion(); }

  // Errors: NotFound, which names the devices; Unavailable where the device is not ready.
  absl::StatusOr<Placement> FindPlace(const Product& product) const;

  // Whether D may have other bits than the product gives alone: neither the request nor its check
  // needs them, and products run as one.
  bool MayVary(const Product& product) const;

  // What is predicted for a kernel on a device, corrected by what products like this one took.
  int64_t ExpectedNs(const ServedDevice& served, const Kernel& kernel, const Problem& problem,
                     int64_t predicted_ns) const {
    return gemmd::ExpectedNs(predicted_ns,
                             scheduler_.CorrectionOf(*served.device, kernel, problem));
  }

 private:
  size_t IndexOf(const ServedDevice& served) const {
    return static_cast<size_t>(&served - devices_.data());
  }
  absl::Status Prepare(Product& product, int64_t message_bytes);
  Placement PlaceOn(const ServedDevice& served, const Product& product) const;
  Placement NearTensors(const Product& product, Placement nearest) const;
  absl::Status CheckAdmissible(int64_t bytes) const;
  absl::Status Place(Product& product) const;
  absl::StatusOr<VerifyNeeds> PlanVerify(Product& product);
  // What is refused is counted and logged.
  absl::Status Refuse(const Product& product, ProductRefusal why, int64_t bytes);
  std::unique_ptr<Product> Refuse(Scheduler::Refused refused);
  void MakeReady(Product& product);
  void QueueAgain(std::unique_ptr<Product> product);
  void End(std::unique_ptr<Product> product);

  const std::vector<ServedDevice>& devices_;
  Scheduler& scheduler_;
  Admission& admission_;
  Stats& stats_;
  const Clock& clock_;
  const int64_t max_message_bytes_;
  TensorStore* const tensors_;
  const VerifyOptions verify_;
  SpanExport* const spans_;                     // Null where no spans are written.
  mutable std::vector<KernelChoices> choices_;  // By device.
  AnswerChecker checker_;
};

// Errors: ResourceExhausted where the message is longer than the caller's may be.
absl::Status CheckMessage(int64_t bytes, const Arrival& arrival);

// Holds a request to its priority and to the devices that its caller may use.
// Errors: PermissionDenied where there is none.
absl::Status RestrictToGrant(const Grant& grant, const std::vector<ServedDevice>& devices,
                             const ProductRunner& runner, Product& product);

// Counts the product among those of its caller until it is done.
// Errors: as Meter::Enter, with the time after which to try again.
absl::Status EnterMeter(const Identity& identity, Product& product, int64_t now_ns);

// Counts what became of a product for the rule of its caller: it was not let in, or it has ended.
// Several that ran as one share the time that they all took.
void CountRefusal(const Arrival& arrival);
void CountEnd(Product& product);

}  // namespace gemmd
