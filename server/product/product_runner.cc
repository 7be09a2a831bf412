// SPDX-License-Identifier: Apache-2.0
#include "server/product/product_runner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/select.h"
#include "server/product/admission.h"
#include "server/product/product.h"

namespace gemmd {

namespace {

// The timing so far; the last stage is still to come.
ProductTiming TimingOf(const Product& product) {
  ProductTiming timing;
  timing[Stage::kReceive] = product.admitted_ns - product.arrival.arrived_ns;
  timing[Stage::kQueue] = product.queue_ns;
  timing[Stage::kCopyIn] = product.outcome.copy_in_ns;
  timing[Stage::kCompute] = product.outcome.compute_ns;
  timing[Stage::kCopyOut] = product.outcome.copy_out_ns;
  return timing;
}

Completion CompletionOf(const Product& product, size_t device) {
  const Problem& problem = product.job.problem;
  return {.device = device,
          .kernel = &product.kernel(),
          .code = product.outcome.status.code(),
          .timing = product.timing,
          .joined = std::max<int64_t>(product.joined, 1),
          .operations = Operations(problem),
          .bytes_read = BytesRead(problem),
          .bytes_written = BytesWritten(problem),
          .batch = problem.batch};
}

// Whether the chosen device has kernels for the product, but all of them have killed workers.
bool IsForLosses(const absl::Status& refusal, const Product& product) {
  return absl::IsFailedPrecondition(refusal) && product.served != nullptr &&
         product.job.kernel == nullptr;
}

// Whether such products have killed workers of the product's device.
bool IsKernelRefused(const Product& product) {
  const DeviceTrust& trust = product.device->trust();
  return !trust.CheckLosses(*product.job.kernel, product.job.problem, product.device_name()).ok();
}

// Makes the tensor with D visible to its owner.
void KeepResult(Product& product) {
  absl::Status& status = product.outcome.status;
  absl::StatusOr<std::optional<TensorState>> kept = product.tensors->Finish(status.ok());
  if (kept.ok()) {
    product.tensor = *std::move(kept);
  } else {
    status = kept.status();
  }
}

}  // namespace

ProductRunner::ProductRunner(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                             Admission& admission, Stats& stats, const Clock& clock,
                             int64_t max_message_bytes, TensorStore* tensors, VerifySetup verify,
                             SpanExport* spans)
    : devices_(devices),
      scheduler_(scheduler),
      admission_(admission),
      stats_(stats),
      clock_(clock),
      max_message_bytes_(max_message_bytes),
      tensors_(tensors),
      verify_(verify.options),
      spans_(spans),
      choices_(devices.size()),
      checker_(devices, scheduler, stats, clock, verify.options, verify.log,
               std::move(verify.chip_state),
               [this](std::unique_ptr<Product> product) { End(std::move(product)); }) {}

// Refuses a request that would not fit even if the server were empty.
absl::Status ProductRunner::CheckAdmissible(int64_t bytes) const {
  const int64_t max_bytes = admission_.limits().max_bytes;
  if (bytes <= max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(Concat("queue: the request needs ", bytes, " bytes, at most ",
                                             max_bytes, " are admitted (--max-queued-bytes)"));
}

absl::StatusOr<Admission::Ticket> ProductRunner::Hold(int64_t message_bytes,
                                                      const Arrival& arrival) {
  absl::Status status = CheckMessage(message_bytes, arrival);
  if (status.ok()) status = CheckAdmissible(message_bytes);
  if (!status.ok()) {
    stats_.AddRefusal(ReasonOf(status));
    CountRefusal(arrival);
    LogRefusal(arrival, status);
    return status;
  }
  absl::StatusOr<Admission::Ticket> ticket = admission_.Hold(message_bytes, arrival.flow());
  if (ticket.ok()) return ticket;
  CountRefusal(arrival);
  LogRefusal(arrival, ticket.status());
  if (!absl::IsResourceExhausted(ticket.status())) return ticket;
  // The request's device is not known yet, so the wait is that of the first device to finish its
  // work.
  int64_t backlog_ns = std::numeric_limits<int64_t>::max();
  for (const ServedDevice& served : devices_) {
    backlog_ns = std::min(backlog_ns, scheduler_.load(*served.device).backlog_ns);
  }
  return WithRetryAfterMs(ticket.status(), RetryMs(backlog_ns));
}

absl::Status ProductRunner::Prepare(Product& product, int64_t message_bytes) {
  RETURN_IF_ERROR(Place(product));
  ASSIGN_OR_RETURN(const VerifyNeeds needs, PlanVerify(product));
  const Job& job = product.job;
  const ProductTensors* const tensors = product.tensors.get();
  // Tensors are charged to their owner.
  const int64_t resident_bytes =
      tensors == nullptr ? 0 : tensors->resident_bytes() - tensors->copied_bytes();
  const int64_t d_bytes = tensors != nullptr && tensors->takes_d() ? 0 : job.d_bytes;
  // A GPU's workspace is in its own memory, which its worker limits.
  const int64_t workspace_bytes =
      job.kernel->device_kind == DeviceKind::kCuda ? 0 : job.workspace_bytes;
  product.answer_bytes = d_bytes;
  int64_t& bytes = product.room_bytes;
  bytes = std::max(message_bytes, BytesRead(job.problem) - resident_bytes);
  if (__builtin_add_overflow(bytes, d_bytes, &bytes) ||
      __builtin_add_overflow(bytes, workspace_bytes, &bytes) ||
      __builtin_add_overflow(bytes, needs.bytes, &bytes)) {
    return absl::ResourceExhaustedError("queue: the request needs more than 2^63 bytes");
  }
  return CheckAdmissible(bytes);
}

// Decides how D will be checked. Operands must stay unchanged until the check.
absl::StatusOr<VerifyNeeds> ProductRunner::PlanVerify(Product& product) {
  product.check = VerifyRule();
  product.check_claim.Release();
  product.recomputed_by = nullptr;
  product.after_ns = product.after_wait_ns = 0;
  const std::optional<VerifyRule>& asked = product.asked_check;
  VerifyRule rule = asked.value_or(verify_.rule);
  if (rule.rate == 0) {
    const bool is_servers = verify_.rule.mode == VerifyMode::kSampled;
    rule.rate = is_servers ? verify_.rule.rate : verify::kDefaultRate;
  }
  if (rule.mode == VerifyMode::kNone) return VerifyNeeds();
  Job& job = product.job;
  const ProductTensors* const tensors = product.tensors.get();
  const bool is_in_place = tensors != nullptr && tensors->is_in_place();
  const bool are_on_device = tensors != nullptr && product.served->device->memory() != nullptr;
  absl::StatusOr<VerifyNeeds> needs =
      is_in_place
          ? absl::UnimplementedError(Concat("verify.mode: got ", NameOf(rule.mode),
                                            " with a D that overwrites C, want another tensor: the "
                                            "check reads C"))
          : NeedsOf(rule, *job.kernel, job.problem,
                    are_on_device ? &product.served->device->profile() : nullptr);
  const int64_t left_ns =
      std::max<int64_t>(admission_.limits().max_product_ns - product.predicted_ns, 0);
  // A check by duplicate uses the device a second time.
  const int64_t again_ns = rule.mode == VerifyMode::kDuplicate ? product.expected_ns() : 0;
  if (!needs.ok() || (!asked && needs->predicted_ns + again_ns > left_ns)) {
    if (asked) return needs.status();
    product.verification =
        AnswerVerification{.mode = rule.mode, .reason = is_in_place ? "in_place" : "unsupported"};
    return VerifyNeeds();
  }
  product.check = rule;
  product.recomputed_by = needs->on_device;
  checker_.Claim(product, needs->predicted_ns);
  product.after_ns += again_ns;
  // Tensors are read in place.
  if (tensors != nullptr && needs->on_device == nullptr) {
    needs->bytes = std::max(needs->bytes - tensors->resident_bytes(), int64_t{0});
  }
  for (const OperandRole role : kOperandRoles) product.job[role].keeper = nullptr;
  return needs;
}

absl::Status ProductRunner::Refuse(const Product& product, ProductRefusal why, int64_t bytes) {
  if (why.reason) stats_.AddRefusal(*why.reason);
  CountRefusal(product.arrival);
  LogRefusal(product.arrival, bytes, why.status);
  return std::move(why.status);
}

// Sets the product's outcome to the reason why it was not admitted.
std::unique_ptr<Product> ProductRunner::Refuse(Scheduler::Refused refused) {
  std::unique_ptr<Product> product(static_cast<Product*>(refused.job.release()));
  product->check_claim.Release();
  // If there was room for the product, the log shows how many bytes it would have taken.
  const bool had_place = refused.why >= Verdict::kTooLong;
  product->outcome.status =
      Refuse(*product, RefusalOf(refused.why, refused.asked, admission_.limits()),
             had_place ? product->room_bytes : product->ticket.bytes());
  return product;
}

absl::Status ProductRunner::Start(std::unique_ptr<Product>& product, absl::Status parsed) {
  Company alone;
  RETURN_IF_ERROR(StartWith(alone, product, std::move(parsed)));
  for (Scheduler::Refused& refused : scheduler_.SubmitTogether(std::move(alone), &admission_)) {
    product = Refuse(std::move(refused));
    return product->outcome.status;
  }
  return absl::OkStatus();
}

absl::Status ProductRunner::StartWith(Company& company, std::unique_ptr<Product>& product,
                                      absl::Status parsed) {
  const Arrival& arrival = product->arrival;
  ProductRefusal refusal = {std::move(parsed), std::nullopt};
  absl::Status& status = refusal.status;
  if (status.ok() && arrival.caller != nullptr) {
    status = RestrictToGrant(arrival.caller->grant, devices_, *this, *product);
  }
  if (status.ok()) status = Prepare(*product, product->ticket.bytes());
  if (!status.ok()) {
    refusal.reason =
        IsForLosses(status, *product) ? RefusalReason::kKernelRefused : ReasonOf(status);
  } else if (arrival.caller != nullptr) {
    status = EnterMeter(*arrival.caller, *product, clock_.NowNs());
    if (!status.ok()) refusal.reason = RefusalReason::kShare;
  }
  if (!status.ok()) {
    product->check_claim.Release();
    return Refuse(*product, std::move(refusal), product->ticket.bytes());
  }
  MakeReady(*product);
  company.push_back(std::move(product));
  return absl::OkStatus();
}

void ProductRunner::StartTogether(Company company) {
  if (company.empty()) return;
  for (Scheduler::Refused& refused : scheduler_.SubmitTogether(std::move(company), &admission_)) {
    std::unique_ptr<Product> product = Refuse(std::move(refused));
    auto answer = std::move(product->answer);
    std::move(answer)(std::move(product));
  }
}

// Completes what the queue needs.
void ProductRunner::MakeReady(Product& product) {
  const Arrival& arrival = product.arrival;
  product.admitted_ns = clock_.NowNs();
  product.bytes = BytesRead(product.job.problem) + product.job.d_bytes;
  product.deadline_ns = arrival.deadline_ns;
  product.caller = arrival.flow().caller;
  product.connection = arrival.connection;
  if (arrival.caller != nullptr) product.share = arrival.caller->grant.share;
  product.done = [this](std::unique_ptr<Submission> submission) {
    std::unique_ptr<Product> ended(static_cast<Product*>(submission.release()));
    if (absl::IsFailedPrecondition(ended->outcome.status) && IsKernelRefused(*ended)) {
      return QueueAgain(std::move(ended));
    }
    const bool is_checked = ended->check.mode != VerifyMode::kNone;
    if (!is_checked && ended->verification) {
      stats_.AddVerification(ended->verification->mode, VerifyEnd::kNotVerified, 0);
    }
    if (!is_checked || !ended->outcome.status.ok()) return End(std::move(ended));
    checker_.Check(std::move(ended));
  };
}

// The device refused the product's kernel while the product waited: another kernel or device may
// serve it.
void ProductRunner::QueueAgain(std::unique_ptr<Product> product) {
  const ServedDevice* const served = product->served;
  const Kernel* const kernel = product->job.kernel;
  absl::Status status = Prepare(*product, product->ticket.bytes());
  if (!status.ok()) {
    product->served = served;
    product->device = served->device;
    product->job.kernel = kernel;
    product->outcome.status = std::move(status);
    return End(std::move(product));
  }
  product->WaitAgain();
  MakeReady(*product);
  scheduler_.Submit(std::move(product));
}

// Reports to the caller how its product has ended.
void ProductRunner::End(std::unique_ptr<Product> ended) {
  Product& product = *ended;
  if (product.tensors != nullptr) KeepResult(product);
  const JobOutcome& outcome = product.outcome;
  ProductTiming& timing = product.timing;
  timing = TimingOf(product);
  const int64_t now_ns = clock_.NowNs();
  if (outcome.status.ok()) timing[Stage::kSendPrepare] = now_ns - product.ended_ns;
  timing.total_ns = now_ns - product.arrival.arrived_ns;
  stats_.AddCompletion(CompletionOf(product, IndexOf(*product.served)));
  CountEnd(product);
  product.entry = Meter::Entry();
  product.check_claim.Release();
  LogProduct(product);
  if (spans_ != nullptr) spans_->Add(product);
  // The product lives until its answer has left, but its tensors only until the answer is being
  // sent.
  const std::unique_ptr<ProductTensors> tensors = std::move(product.tensors);
  auto answer = std::move(product.answer);
  std::move(answer)(std::move(ended));
}

// The choice of the device.

namespace {

absl::Status NoSuchDevice(std::string_view name, const std::vector<ServedDevice>& devices) {
  const auto append_name = [](std::string* names, const ServedDevice& served) {
    *names += served.device->info().name;
  };
  return absl::NotFoundError(
      GotWant("device", Shown(name), Concat("one of ", absl::StrJoin(devices, ", ", append_name))));
}

}  // namespace

// The device, with its best trusted kernel for the product.
ProductRunner::Placement ProductRunner::PlaceOn(const ServedDevice& served,
                                                const Product& product) const {
  const Problem& problem = product.job.problem;
  Placement place = {.served = &served, .distrusted = served.distrusted(problem)};
  Constraints constraints = product.constraints;
  constraints.distrusted = place.distrusted;
  const auto choose = [&] {
    const DeviceProfile& profile = served.device->profile();
    return KernelChoices::Make(
        FindBest(Catalog(served.device->info().kind), problem, constraints, profile), problem,
        profile);
  };
  const KernelChoices::Choice choice =
      place.distrusted.empty()
          ? choices_[IndexOf(served)].Find({.problem = problem,
                                            .kernel = constraints.kernel,
                                            .deterministic = constraints.deterministic,
                                            .batch_invariant = constraints.batch_invariant},
                                           choose)
          : choose();
  place.kernel = choice.kernel;
  place.predicted = choice.predicted;
  return place;
}

absl::StatusOr<ProductRunner::Placement> ProductRunner::FindPlace(const Product& product) const {
  const Kernel* const wanted = product.constraints.kernel;
  // How specific the reason of a device is that cannot serve: most specific if it has the wanted
  // kernel and could run the product if the kernel were trusted.
  const auto says = [&](const Placement& place) {
    const Device& device = *place.served->device;
    if (wanted != nullptr && device.info().kind != wanted->device_kind) return 0;
    const bool is_barred =
        !place.distrusted.empty() && FindBest(Catalog(device.info().kind), product.job.problem,
                                              product.constraints, device.profile()) != nullptr;
    return is_barred ? 2 : 1;
  };
  Placement place;
  int best = -1;
  for (const ServedDevice& served : devices_) {
    const std::string& name = served.device->info().name;
    if (!product.wanted_device.empty() && name != product.wanted_device) continue;
    Placement next = PlaceOn(served, product);
    const bool is_found = next.kernel != nullptr;
    const int rank = is_found ? 3 : says(next);
    if (rank > best) place = std::move(next);
    best = std::max(best, rank);
    if (is_found) break;
  }
  if (place.served == nullptr) return NoSuchDevice(product.wanted_device, devices_);
  if (product.wanted_device.empty() && product.tensors != nullptr) {
    place = NearTensors(product, std::move(place));
  }
  RETURN_IF_ERROR(place.served->readiness());
  return place;
}

// Copying a tensor to a GPU takes longer than most products with it.
ProductRunner::Placement ProductRunner::NearTensors(const Product& product,
                                                    Placement nearest) const {
  const DeviceInfo& wanted = nearest.served->device->info();
  if (wanted.kind != DeviceKind::kCuda || nearest.kernel == nullptr) return nearest;
  int64_t max_bytes = product.tensors->BytesOn(wanted.name);
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    const bool is_equal = info.kind == wanted.kind && info.description == wanted.description;
    if (!is_equal || !served.readiness().ok()) continue;
    const int64_t bytes = product.tensors->BytesOn(info.name);
    if (bytes <= max_bytes) continue;
    Placement nearer = PlaceOn(served, product);
    if (nearer.kernel == nullptr) continue;
    max_bytes = bytes;
    nearest = std::move(nearer);
  }
  return nearest;
}

// A check by duplicate compares D with the D of the product alone.
bool ProductRunner::MayVary(const Product& product) const {
  const Constraints& asked = product.constraints;
  return !asked.deterministic && !asked.batch_invariant && scheduler_.joins() &&
         product.asked_check.value_or(verify_.rule).mode != VerifyMode::kDuplicate;
}

// Chooses device and kernel, and completes the job with the sizes that follow.
absl::Status ProductRunner::Place(Product& product) const {
  Job& job = product.job;
  ASSIGN_OR_RETURN(const Placement place, FindPlace(product));
  product.served = place.served;
  product.device = place.served->device;
  job.kernel = place.kernel;
  // A launch of joined jobs must not switch to a distrusted kernel either.
  job.keeps_kernel = product.constraints.kernel != nullptr || !place.distrusted.empty();
  job.may_vary = MayVary(product);
  const DeviceProfile& profile = product.device->profile();
  if (job.kernel == nullptr) {
    Constraints constraints = product.constraints;
    constraints.distrusted = place.distrusted;
    return Choose(Catalog(profile.target.kind), job.problem, constraints, profile).status();
  }
  RETURN_IF_ERROR(product.device->CheckSize(job.problem));
  job.d_bytes = BytesWritten(job.problem);
  const bool is_sent = product.tensors == nullptr || !product.tensors->takes_d();
  if (is_sent && job.d_bytes > max_message_bytes_ - kAnswerOverheadBytes) {
    return absl::ResourceExhaustedError(Concat("d: the result takes ", job.d_bytes,
                                               " bytes, a message holds at most ",
                                               max_message_bytes_ - kAnswerOverheadBytes));
  }
  ASSIGN_OR_RETURN(job.workspace_bytes, job.kernel->workspace_bytes(job.problem));
  scheduler_.SetTime(product, place.predicted);
  return absl::OkStatus();
}

absl::Status CheckMessage(int64_t bytes, const Arrival& arrival) {
  if (arrival.caller == nullptr || bytes <= arrival.caller->grant.message_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(Concat("request: got ", bytes,
                                             " bytes, the caller's rules allow ",
                                             arrival.caller->grant.message_bytes));
}

absl::Status RestrictToGrant(const Grant& grant, const std::vector<ServedDevice>& devices,
                             const ProductRunner& runner, Product& product) {
  if (grant.is_low_priority) product.priority = Priority::kLow;
  if (grant.devices.empty() || grant.MayUse(product.wanted_device)) return absl::OkStatus();
  std::string first;
  for (const ServedDevice& served : devices) {
    const std::string& name = served.device->info().name;
    if (!product.wanted_device.empty() || !grant.MayUse(name)) continue;
    if (first.empty()) first = name;
    product.wanted_device = name;
    const absl::StatusOr<ProductRunner::Placement> place = runner.FindPlace(product);
    if (place.ok() && place->kernel != nullptr) return absl::OkStatus();
    product.wanted_device.clear();
  }
  product.wanted_device = first;  // Its reason for having no kernel is the most specific.
  if (!first.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      Concat("device: got one that the rules do not allow this caller, want one of ",
             absl::StrJoin(grant.devices, ", ")));
}

absl::Status EnterMeter(const Identity& identity, Product& product, int64_t now_ns) {
  int64_t retry_after_ns = 0;
  const int64_t expected_ns = product.expected_ns() + product.after_ns;
  absl::StatusOr<Meter::Entry> entry = identity.meter->Enter(
      identity.grant.in_flight, product.room_bytes, expected_ns, now_ns, &retry_after_ns);
  if (!entry.ok()) {
    return WithRetryAfterMs(entry.status(), RetryMs(std::max(retry_after_ns, expected_ns)));
  }
  product.entry = *std::move(entry);
  return absl::OkStatus();
}

void CountRefusal(const Arrival& arrival) {
  if (arrival.caller != nullptr && arrival.caller->use != nullptr) {
    arrival.caller->use->AddRefusal();
  }
}

void CountEnd(Product& product) {
  const Identity* const caller = product.arrival.caller.get();
  if (caller == nullptr) return;
  const bool is_ok = product.outcome.status.ok();
  const int64_t compute_ns = product.timing[Stage::kCompute];
  // Charged even if not completed: a caller that cancels pays for what ran.
  const bool was_checked = product.check_ran_ns > 0;
  if (is_ok || was_checked) {
    // The time of products that ran as one is split among them; otherwise the caller would pay the
    // whole for each. A check has a host thread to itself, or the device a second time.
    const bool is_twice = product.check.mode == VerifyMode::kDuplicate;
    product.entry.Took((is_twice ? 2 : 1) * std::min(compute_ns / 2, product.expected_ns()) * 2 +
                       product.check_ran_ns);
  }
  if (caller->use == nullptr) return;
  if (!is_ok) return caller->use->AddFailure();
  caller->use->AddAnswer(compute_ns / std::max<int64_t>(product.joined, 1));
}

}  // namespace gemmd
