// SPDX-License-Identifier: Apache-2.0
//
// Runs one product between the wire and the devices, for unary calls and streams alike: chooses
// device and kernel, admits and queues the product, and reports how it ended.
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

// How answers are checked, and how incidents are recorded. Borrowed.
struct VerifySetup {
  VerifyOptions options;
  IncidentLog* log = nullptr;  // Null: incidents are not kept.
  std::function<std::string(size_t device)> chip_state;
};

class ProductRunner {
 public:
  // Borrows all arguments. The first device is the default one.
  ProductRunner(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                Admission& admission, Stats& stats, const Clock& clock, int64_t max_message_bytes,
                TensorStore* tensors = nullptr, VerifySetup verify = {},
                SpanExport* spans = nullptr);

  // The tensors that requests may name. Call it only if there is a store.
  TensorStore& tensors() const { return *tensors_; }

  // Holds the bytes of a message that has arrived and may become a product. The ticket is for
  // Start. Errors: Unavailable while the server drains; ResourceExhausted if there is no room.
  // Threads: any.
  absl::StatusOr<Admission::Ticket> Hold(int64_t message_bytes, const Arrival& arrival);

  // An id for a product that is started later, by which it can be cancelled. Threads: any.
  JobId NewId() { return scheduler_.NewId(); }

  // Starts a product whose id, job, constraints, arrival and `answer` are set. If this returns OK,
  // the product is taken, and its `answer` is called exactly once, from another thread or from
  // Cancel; the operands must live until then. The product's ticket holds the bytes of the message,
  // and then also those of result and scratch memory. If `parsed` is an error, the request could
  // not be parsed: it is counted and logged like any other refusal, and the status is returned.
  //
  // Errors: as Gemm.Multiply of the wire contract; the caller then keeps the product, and `answer`
  // is never called. Threads: any.
  absl::Status Start(std::unique_ptr<Product>& product, absl::Status parsed);

  // The same for one of several products that arrived together. It waits in `company` until
  // StartTogether, and counts among its caller's products meanwhile. Only StartTogether admits it,
  // so its `answer` may report a refusal.
  absl::Status StartWith(Company& company, std::unique_ptr<Product>& product, absl::Status parsed);
  void StartTogether(Company company);

  // Drops the product if it waits, and aborts it if it runs or is being checked. A product that
  // passes from one to the other at this moment may continue to the end of its check.
  void Cancel(JobId id) { Cancel(absl::MakeConstSpan(&id, 1)); }
  void Cancel(absl::Span<const JobId> ids) {
    scheduler_.Cancel(ids);
    checker_.Cancel(ids);
  }
  // Ends all checks of answers early, present and later ones.
  void StopChecks() { checker_.Stop(); }

  // Where a product runs: on the device that it names, otherwise on the first device that has a
  // kernel for it, or on an equal GPU that holds more of its tensors. If no device has a kernel,
  // the device with the most specific reason.
  struct Placement {
    const ServedDevice* served = nullptr;
    const Kernel* kernel = nullptr;  // Null if no kernel of the device can run the product.
    PredictedTime predicted = {};
    std::vector<DistrustedKernel> distrusted = {};  // Kernels of the device, for products like
                                                    // this.
  };

  // See Admission::CheckQuestion.
  absl::Status CheckQuestion() const { return admission_.CheckQuestion(); }

  // Errors: NotFound, naming the devices; Unavailable if the device is not ready.
  absl::StatusOr<Placement> FindPlace(const Product& product) const;

  // Whether D may have other bits than the product has when it runs alone: products may run as one,
  // and neither the request nor the check requires those bits.
  bool MayVary(const Product& product) const;

  // The time predicted for a kernel on a device, corrected by the times of recent products like
  // this one.
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
  // Counts and logs a refusal.
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
  SpanExport* const spans_;                     // Null if no spans are written.
  mutable std::vector<KernelChoices> choices_;  // By device.
  AnswerChecker checker_;
};

// Errors: ResourceExhausted if the message is longer than its caller's may be.
absl::Status CheckMessage(int64_t bytes, const Arrival& arrival);

// Applies the caller's priority, and restricts the product to the devices that the caller may use.
// Errors: PermissionDenied if there is none.
absl::Status RestrictToGrant(const Grant& grant, const std::vector<ServedDevice>& devices,
                             const ProductRunner& runner, Product& product);

// Counts the product among those of its caller until its end. Errors: as Meter::Enter, with the
// time after which to try again.
absl::Status EnterMeter(const Identity& identity, Product& product, int64_t now_ns);

// Count the refusal or the end of a product for its caller's rule. Products that ran as one share
// the time that they took together.
void CountRefusal(const Arrival& arrival);
void CountEnd(Product& product);

}  // namespace gemmd
