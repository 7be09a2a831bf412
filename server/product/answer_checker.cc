// SPDX-License-Identifier: Apache-2.0
#include "server/product/answer_checker.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/select.h"
#include "kernels/verify/checksum.h"
#include "kernels/verify/recompute.h"
#include "kernels/verify/sampled.h"
#include "kernels/verify/sub_product.h"
#include "server/crossing/recompute_task.h"
#include "server/device/device.h"
#include "server/device/operands.h"
#include "server/product/verification.h"
#include "server/store/digest.h"
#include "server/store/product_tensors.h"
#include "server/system/log.h"
#include "server/system/resources.h"

namespace gemmd {

namespace {

// How often a wrong answer is computed again.
constexpr int kMaxRetries = 2;

std::string HashOf(Piece bytes) {
  if (bytes.empty()) return "";
  const Sha256Digest digest = Sha256::Of(bytes);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

// D in host memory.
Piece ResultOf(const Product& product) {
  const Job& job = product.job;
  if (job.d.memory != nullptr) return {job.d.memory, static_cast<size_t>(job.d_bytes)};
  return product.outcome.d.bytes();
}

// The arguments of a check. Borrows the operands.
verify::CheckedProduct CheckedProductOf(const Product& product, const PerOperand<Piece>& operands,
                                        AbortFlag abort) {
  const Problem& problem = product.job.problem;
  const Target& target = product.device->profile().target;
  const GemmArgs args = ArgsAt(problem, target, operands, /*d=*/nullptr, /*workspace=*/{});
  return {.kernel = product.kernel(),
          .target = target,
          .problem = problem,
          .a = operands.a,
          .b = operands.b,
          .c = operands.c,
          .bias = operands.bias,
          .a_scale = args.a_scale,
          .b_scale = args.b_scale,
          .d = ResultOf(product),
          .abort = abort,
          .a_factors = args.a_factors != nullptr ? operands.a_scale : Piece(),
          .b_factors = args.b_factors != nullptr ? operands.b_scale : Piece()};
}

constexpr std::string_view kNoMemory = "verify: no memory for the operands in one piece";

// The operands of a job, each in one piece.
class JoinedOperands {
 public:
  // Errors: ResourceExhausted; Cancelled if aborted while the pieces were joined.
  absl::Status Join(const Job& job, AbortFlag abort) {
    ASSIGN_OR_RETURN(pieces_, gathering_.TakeAll(job, abort));
    return absl::OkStatus();
  }

  const PerOperand<Piece>& pieces() const { return pieces_; }

 private:
  WarmMemory memory_{0};
  Gathering gathering_{memory_, /*threads=*/1};
  PerOperand<Piece> pieces_;
};

// Calls `work` with the operands of a job, each in one piece, and returns its result. Errors:
// ResourceExhausted; Cancelled if aborted while the pieces were joined.
template <typename Work>
auto WithOperands(const Job& job, AbortFlag abort, const Work& work)
    -> decltype(work(PerOperand<Piece>())) {
  const auto join = [&]() -> decltype(work(PerOperand<Piece>())) {
    JoinedOperands operands;
    const absl::Status joined = operands.Join(job, abort);
    if (absl::IsResourceExhausted(joined)) throw std::bad_alloc();
    RETURN_IF_ERROR(joined);
    return work(operands.pieces());
  };
  return OrNoMemory(kNoMemory, join);
}

// Whether another product has overwritten an operand or the result: then the result cannot be
// judged.
bool IsOverwritten(const Job& job) {
  return job.tensors != nullptr && !job.tensors->is_unchanged();
}

std::string WhereOf(const verify::WrongElement& element) {
  return Concat("row ", element.row, ", column ", element.column, " of matrix ", element.batch);
}

// Seeded from the system's randomness, so that no device can know what is drawn.
verify::Draw MakeDraw() {
  std::random_device device;
  std::array<uint32_t, 8> words;
  for (uint32_t& word : words) word = device();
  std::seed_seq seed(words.begin(), words.end());
  return verify::Draw(seed);
}

verify::Draw& DrawOfThread() {
  thread_local verify::Draw draw = MakeDraw();
  return draw;
}

// 0: a quarter of the processors, at least one.
int ThreadsOf(int asked) {
  if (asked > 0) return asked;
  return std::max(1, UsableProcessors() / 4);
}

}  // namespace

AnswerChecker::AnswerChecker(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                             Stats& stats, const Clock& clock, const VerifyOptions& options,
                             IncidentLog* log, std::function<std::string(size_t device)> chip_state,
                             Done done)
    : devices_(devices),
      scheduler_(scheduler),
      stats_(stats),
      clock_(clock),
      options_(options),
      log_(log),
      chip_state_(std::move(chip_state)),
      done_(std::move(done)),
      checks_(ThreadsOf(options.threads), clock) {}

AnswerChecker::~AnswerChecker() {
  Stop();
  {
    MutexLock lock(&mutex_);
    if (canaries_ == 0) return;
  }
  scheduler_.Stop(absl::UnavailableError("the server stopped"));
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return canaries_ == 0; });
}

void AnswerChecker::Check(std::unique_ptr<Product> product) {
  product->check_begun_ns = clock_.NowNs();
  if (product->recomputed_by == nullptr) return BeginOnHost(std::move(product));
  Post(std::move(product), [this](std::unique_ptr<Product>& checked, AbortFlag abort) {
    RecomputeOnDevice(std::move(checked), abort);
    return true;
  });
}

void AnswerChecker::BeginOnHost(std::unique_ptr<Product> product) {
  ProductTensors* const tensors = product->job.tensors;
  if (tensors == nullptr) return Begin(std::move(product));
  tensors->BringToHost([this, product = std::move(product)](const absl::Status& status) mutable {
    status.ok() ? Begin(std::move(product)) : EndNotVerified(std::move(product), "unread");
  });
}

void AnswerChecker::Claim(Product& product, int64_t predicted_ns) {
  product.check_predicted_ns = predicted_ns;
  product.after_ns = predicted_ns;
  product.check_claim = checks_.Enter(product.arrival.flow(), product.priority, product.after_ns,
                                      product.after_wait_ns);
}

void AnswerChecker::Post(std::unique_ptr<Product> product, Step step) {
  auto check = std::make_unique<CheckQueue::Check>();
  check->id = product->id;
  check->predicted_ns = product->check_predicted_ns;
  check->deadline_ns = product->deadline_ns;
  check->priority = product->priority;
  check->share = product->share;
  check->caller = product->caller;
  check->connection = product->connection;
  check->work = [this, step = std::move(step), product = std::move(product)](
                    const absl::Status& status, AbortFlag abort) mutable {
    if (status.ok()) return step(product, abort);
    step = nullptr;  // It borrows the product.
    EndEarly(std::move(product), status);
    return true;
  };
  checks_.Add(std::move(check));
}

namespace {

// The order to compute a sample again. Copies the rows and columns of operands in host memory.
// Errors: ResourceExhausted; Cancelled.
absl::StatusOr<DeviceMemory::Recomputation> RecomputationOf(const Product& product,
                                                            AbortFlag abort) {
  const Job& job = product.job;
  const verify::SampledLines& lines = product.sampled;
  DeviceMemory::Recomputation order;
  order.kernel = product.recomputed_by;
  order.predicted_ns = product.check_predicted_ns;
  order.task = {.problem = job.problem,
                .rows = static_cast<int64_t>(lines.rows.size()),
                .columns = static_cast<int64_t>(lines.columns.size()),
                .places = {}};
  ASSIGN_OR_RETURN(const RecomputeLayout layout, LayOutRecompute(order.task));
  const auto gather = [&](const PerOperand<Piece>& operands) {
    for (const OperandRole role : kOperandRoles) {
      if (job[role].is_resident || job[role].bytes == 0) continue;
      std::vector<std::byte>& to = order.operands[role];
      to.resize(static_cast<size_t>(layout.operands[role].bytes));
      for (const ElementGather& one : verify::GathersOf(job.problem, layout.sub, role,
                                                        {lines.rows.data(), lines.columns.data()},
                                                        operands[role].data(), to.data())) {
        GatherElements(one);
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(WithOperands(job, abort, gather));
  order.numbers = lines.rows;
  order.numbers.insert(order.numbers.end(), lines.columns.begin(), lines.columns.end());
  return order;
}

// The elements of a D in host memory.
std::vector<std::byte> FoundIn(Piece d, const RecomputeTask& task, const RecomputeLayout& layout,
                               absl::Span<const int64_t> numbers) {
  std::vector<std::byte> found(static_cast<size_t>(layout.operands.d.bytes));
  GatherElements(verify::GatherOfD(task.problem, layout.sub,
                                   {numbers.data(), numbers.data() + task.rows}, d.data(),
                                   found.data()));
  return found;
}

}  // namespace

void AnswerChecker::RecomputeOnDevice(std::unique_ptr<Product> product, AbortFlag abort) {
  const int64_t begun_ns = clock_.NowNs();
  const Problem& problem = product->job.problem;
  const double rate = product->check.rate;
  const verify::SamplePlan plan = verify::PlanSample(problem, rate);
  SampleOfD sample;
  sample.passed = {.reason = {},
                   .elements_checked = plan.rows * plan.columns * problem.batch,
                   .wrong = std::nullopt,
                   .miss_probability = plan.miss_probability,
                   .cost = plan.cost};
  using Recomputation = DeviceMemory::Recomputation;
  auto order = OrNoMemory(kNoMemory, [&]() -> absl::StatusOr<Recomputation> {
    product->sampled = verify::DrawSample(problem, rate, DrawOfThread());
    ASSIGN_OR_RETURN(Recomputation made, RecomputationOf(*product, abort));
    if (product->tensors->takes_d()) return made;
    ASSIGN_OR_RETURN(const RecomputeLayout layout, LayOutRecompute(made.task));
    sample.found = FoundIn(ResultOf(*product), made.task, layout, made.numbers);
    return made;
  });
  product->check_ran_ns += clock_.NowNs() - begun_ns;
  if (absl::IsCancelled(order.status())) return EndEarly(std::move(product), order.status());
  if (!order.ok()) return BeginOnHost(std::move(product));
  Device& device = *product->device;
  const Job& job = product->job;
  device.Recompute(job, *std::move(order),
                   [this, sample = std::move(sample), product = std::move(product)](
                       absl::StatusOr<DeviceMemory::Recomputed> result) mutable {
                     EndRecompute(std::move(product), sample, result);
                   });
}

void AnswerChecker::EndRecompute(std::unique_ptr<Product> product, const SampleOfD& sample,
                                 const absl::StatusOr<DeviceMemory::Recomputed>& result) {
  const bool is_same = result.ok() && !result->computed.empty() &&
                       result->computed == (sample.found.empty() ? result->found : sample.found);
  if (!is_same && IsOverwritten(product->job)) {
    return EndNotVerified(std::move(product), "overwritten");
  }
  if (!is_same) {
    // If the host finds D right, the device has computed its sample wrong.
    if (result.ok()) {
      spdlog::warn("event=sample_differs device={} kernel={} sample_kernel={} problem={}",
                   LogValue(product->device_name()), product->kernel().name,
                   product->recomputed_by->name, LogValue(Describe(product->job.problem)));
    }
    return BeginOnHost(std::move(product));
  }
  product->again_served = product->served;
  product->again_kernel = product->recomputed_by;
  EndVerified(std::move(product), sample.passed);
}

// Borrows the product, its operands in one piece, until the check has ended.
class AnswerChecker::Verification {
 public:
  // Does the next slice. Returns the result once the check has ended. Errors, which end it too:
  // ResourceExhausted; Cancelled if aborted.
  absl::StatusOr<std::optional<verify::CheckResult>> Continue(const Product& product,
                                                              AbortFlag abort) {
    return OrNoMemory(kNoMemory, [&]() -> absl::StatusOr<std::optional<verify::CheckResult>> {
      if (check_ == nullptr) RETURN_IF_ERROR(Begin(product, abort));
      ASSIGN_OR_RETURN(const bool has_ended, check_->Continue());
      if (!has_ended) return std::nullopt;
      return check_->result();
    });
  }

 private:
  absl::Status Begin(const Product& product, AbortFlag abort) {
    const absl::Status joined = operands_.Join(product.job, abort);
    if (absl::IsResourceExhausted(joined)) throw std::bad_alloc();
    RETURN_IF_ERROR(joined);
    const verify::CheckedProduct checked = CheckedProductOf(product, operands_.pieces(), abort);
    check_ = product.check.mode == VerifyMode::kSampled
                 ? verify::StartSample(checked, product.check.rate, draw_, product.sampled)
                 : verify::StartSums(checked, draw_);
    return absl::OkStatus();
  }

  JoinedOperands operands_;
  verify::Draw draw_{DrawOfThread()()};
  std::unique_ptr<verify::SlicedCheck> check_;  // Null before the first slice.
};

void AnswerChecker::Begin(std::unique_ptr<Product> product) {
  if (product->check.mode == VerifyMode::kDuplicate) return ComputeOnceMore(std::move(product));
  auto check = [this, verification = std::make_unique<Verification>()](
                   std::unique_ptr<Product>& verified, AbortFlag abort) mutable {
    const int64_t begun_ns = clock_.NowNs();
    const absl::StatusOr<std::optional<verify::CheckResult>> result =
        verification->Continue(*verified, abort);
    verified->check_ran_ns += clock_.NowNs() - begun_ns;
    if (result.ok() && !result->has_value()) return false;
    verification = nullptr;
    if (result.ok()) {
      EndVerified(std::move(verified), **result);
    } else {
      EndEarly(std::move(verified), result.status());
    }
    return true;
  };
  Post(std::move(product), std::move(check));
}

void AnswerChecker::EndVerified(std::unique_ptr<Product> product,
                                const verify::CheckResult& check) {
  if (IsOverwritten(product->job)) return EndNotVerified(std::move(product), "overwritten");
  if (check.end != verify::CheckEnd::kWrong) return EndOk(std::move(product), check);
  const Place place = {product->served, &product->kernel()};
  EndWrong(std::move(product), place, check);
}

// Ends a check early, because the caller cancelled or the deadline passed.
void AnswerChecker::EndEarly(std::unique_ptr<Product> product, const absl::Status& status) {
  if (!absl::IsCancelled(status)) return EndWith(std::move(product), status);
  if (is_stopped_) {
    return EndWith(std::move(product), absl::UnavailableError("the server stopped"));
  }
  const bool is_late = product->deadline_ns <= clock_.NowNs();
  EndWith(std::move(product),
          is_late ? absl::DeadlineExceededError("the deadline passed while D was checked")
                  : absl::CancelledError("cancelled while D was checked"));
}

void AnswerChecker::End(std::unique_ptr<Product> product) {
  product->ended_ns = clock_.NowNs();
  done_(std::move(product));
}

void AnswerChecker::EndWith(std::unique_ptr<Product> product, absl::Status status) {
  product->outcome.status = std::move(status);
  product->outcome.d = HeldBytes();
  End(std::move(product));
}

void AnswerChecker::EndOk(std::unique_ptr<Product> product, const verify::CheckResult& check) {
  const bool is_passed = check.end == verify::CheckEnd::kPassed;
  AnswerVerification& verification = product->verification.emplace();
  verification = {.mode = product->check.mode,
                  .end = is_passed ? VerifyEnd::kPassed : VerifyEnd::kNotVerified,
                  .reason = check.reason,
                  .elements_checked = check.elements_checked,
                  .miss_probability = check.miss_probability,
                  .cost = check.cost,
                  .least_error = check.least_error,
                  .verify_ns = clock_.NowNs() - product->check_begun_ns,
                  .wrong_answers = product->wrong_answers};
  if (product->again_kernel != nullptr) {
    verification.kernel = product->again_kernel->name;
    verification.device = product->again_served->device->info().name;
  }
  stats_.AddVerification(verification);
  End(std::move(product));
}

void AnswerChecker::EndNotVerified(std::unique_ptr<Product> product, std::string_view reason) {
  EndOk(std::move(product), {.end = verify::CheckEnd::kNotVerified,
                             .reason = reason,
                             .wrong = std::nullopt,
                             .miss_probability = 1});
}

// Reuses the product's id: its own job has ended, and the scheduler only requires that no two jobs
// have an id at the same time.
std::unique_ptr<Submission> AnswerChecker::SubmissionFor(const Product& product,
                                                         Place place) const {
  auto submission = std::make_unique<Submission>();
  submission->id = product.id;
  submission->device = place.served->device;
  Job& job = submission->job;
  job = product.job;
  job.kernel = place.kernel;
  job.keeps_kernel = true;
  // Reads host memory and writes to memory of its own.
  job.tensors = nullptr;
  job.forms = nullptr;
  job.d = Destination();
  for (const OperandRole role : kOperandRoles) job[role].is_resident = false;
  job.problem.a_stays = job.problem.b_stays = false;
  job.problem.a_factors_stay = job.problem.b_factors_stay = false;
  job.workspace_bytes =
      std::max(job.workspace_bytes, place.kernel->workspace_bytes(job.problem).value_or(0));
  submission->bytes = product.bytes;
  const DeviceProfile& profile = place.served->device->profile();
  scheduler_.SetTime(*submission, Predict(*place.kernel, job.problem, profile));
  submission->deadline_ns = product.deadline_ns;
  submission->caller = product.caller;
  submission->connection = product.connection;
  submission->priority = product.priority;
  submission->share = product.share;
  return submission;
}

void AnswerChecker::ComputeOnceMore(std::unique_ptr<Product> product) {
  const Place place = EqualPlace(*product);
  std::unique_ptr<Submission> again = SubmissionFor(*product, place);
  again->done = [this, place,
                 product = std::move(product)](std::unique_ptr<Submission> ended) mutable {
    JobOutcome& outcome = ended->outcome;
    if (!outcome.status.ok()) return EndWith(std::move(product), std::move(outcome.status));
    product->again_served = place.served;
    product->again_kernel = outcome.kernel != nullptr ? outcome.kernel : place.kernel;
    product->again = std::move(outcome.d);
    Post(std::move(product), [this](std::unique_ptr<Product>& compared, AbortFlag abort) {
      Compare(std::move(compared), abort);
      return true;
    });
  };
  scheduler_.Submit(std::move(again));
}

void AnswerChecker::Compare(std::unique_ptr<Product> product, AbortFlag abort) {
  verify::CheckResult check =
      verify::CompareResults(product->job.problem, ResultOf(*product), product->again.bytes());
  if (IsOverwritten(product->job)) return EndNotVerified(std::move(product), "overwritten");
  if (check.end != verify::CheckEnd::kWrong) return EndOk(std::move(product), check);
  Place blamed = {product->served, &product->kernel()};
  if (verify::CanRecompute(*blamed.kernel).ok()) {
    const absl::StatusOr<bool> is_first_right = IsElementRight(*product, *check.wrong, abort);
    if (!is_first_right.ok()) return EndEarly(std::move(product), is_first_right.status());
    if (*is_first_right) {
      blamed = {product->again_served, product->again_kernel};
      std::swap(check.wrong->got_bits, check.wrong->want_bits);
    }
  }
  EndWrong(std::move(product), blamed, check);
}

absl::StatusOr<bool> AnswerChecker::IsElementRight(const Product& product,
                                                   const verify::WrongElement& element,
                                                   AbortFlag abort) {
  const auto recompute = [&](const PerOperand<Piece>& operands) -> absl::StatusOr<bool> {
    verify::CheckResult first;
    RETURN_IF_ERROR(verify::Recompute(CheckedProductOf(product, operands, abort), element.batch,
                                      absl::MakeConstSpan(&element.row, 1),
                                      absl::MakeConstSpan(&element.column, 1), first));
    return first.end == verify::CheckEnd::kPassed;
  };
  return WithOperands(product.job, abort, recompute);
}

void AnswerChecker::EndWrong(std::unique_ptr<Product> product, Place place,
                             const verify::CheckResult& check) {
  const std::string& device = place.served->device->info().name;
  const VerifyMode mode = product->check.mode;
  DeviceTrust& trust = place.served->device->trust();
  const bool took_out = trust.AddWrongAnswer(*place.kernel);
  stats_.AddVerification(mode, VerifyEnd::kFailed, clock_.NowNs() - product->check_begun_ns);
  std::string details;
  const absl::Status noted = OrNoMemory("no memory for a copy of the operands", [&] {
    details = Note(*product, place, check, took_out);
    return absl::OkStatus();
  });
  if (!noted.ok()) {
    spdlog::error("event=incident_not_kept reason={}", LogValue(std::string(noted.message())));
  }
  spdlog::error("event=wrong_answer device={} kernel={} problem={} element={} mode={} out={}{}",
                LogValue(device), place.kernel->name, LogValue(Describe(product->job.problem)),
                LogValue(WhereOf(*check.wrong)), NameOf(mode), took_out, details);
  if (trust.status().ok()) RunCanaries(*place.served);
  ++product->wrong_answers;
  // A tensor is not overwritten: others may have read it.
  const Destination& d = product->job.d;
  const bool is_tried =
      options_.retry && product->wrong_answers <= kMaxRetries && d.memory == nullptr;
  const Place elsewhere = is_tried ? PlaceForRetry(*product) : Place();
  if (elsewhere.kernel != nullptr) return ComputeElsewhere(std::move(product), elsewhere);
  // A new tensor is never shown to its owner.
  const bool is_left = d.memory != nullptr && !d.is_new;
  absl::Status status = absl::DataLossError(
      Concat("d: ", place.kernel->name, " on ", device, " gave a wrong element at ",
             WhereOf(*check.wrong), is_left ? "; its tensor is undefined" : "; it is not answered",
             " (verify ", NameOf(mode), ")"));
  EndWith(std::move(product), std::move(status));
}

std::string AnswerChecker::Note(const Product& product, Place place,
                                const verify::CheckResult& check, bool took_out_device) {
  if (log_ == nullptr) return "";
  const Job& job = product.job;
  Incident incident;
  incident.time_unix_ns = absl::ToUnixNanos(absl::Now());
  incident.device = place.served->device->info().name;
  incident.kernel = std::string(place.kernel->name);
  incident.problem = Describe(job.problem);
  incident.mode = product.check.mode;
  incident.element = *check.wrong;
  incident.wrong_elements = check.wrong_elements;
  incident.element_type = job.problem.d.type;
  if (chip_state_) {
    incident.chip_state = chip_state_(static_cast<size_t>(place.served - devices_.data()));
  }
  incident.request_id = product.arrival.request_id;
  incident.took_out_device = took_out_device;
  // If there is no memory to join the operands' pieces, the incident is recorded without operands.
  absl::StatusOr<std::shared_ptr<KeptProduct>> kept = Keep(job, incident);
  incident.id = log_->Add(incident, kept.ok() ? *std::move(kept) : nullptr);
  return LogFieldsOf(incident);
}

absl::StatusOr<std::shared_ptr<KeptProduct>> AnswerChecker::Keep(const Job& job,
                                                                 Incident& incident) const {
  using Kept = absl::StatusOr<std::shared_ptr<KeptProduct>>;
  return WithOperands(job, /*abort=*/nullptr, [&](const PerOperand<Piece>& operands) -> Kept {
    incident.a_sha256 = HashOf(operands.a);
    incident.b_sha256 = HashOf(operands.b);
    incident.c_sha256 = HashOf(operands.c);
    incident.bias_sha256 = HashOf(operands.bias);
    auto kept = std::make_shared<KeptProduct>();
    kept->problem = job.problem;
    kept->has_operands = BytesRead(job.problem) <= log_->max_kept_bytes();
    for (const OperandRole role : kOperandRoles) {
      const bool is_scale = role >= OperandRole::kAScale;
      const Piece& bytes = operands[role];
      if (is_scale || kept->has_operands) (*kept)[role].assign(bytes.begin(), bytes.end());
    }
    return kept;
  });
}

void AnswerChecker::ComputeElsewhere(std::unique_ptr<Product> product, Place place) {
  std::unique_ptr<Submission> other = SubmissionFor(*product, place);
  other->done = [this, place,
                 product = std::move(product)](std::unique_ptr<Submission> ended) mutable {
    product->served = place.served;
    product->device = place.served->device;
    product->job.kernel = place.kernel;
    product->outcome = std::move(ended->outcome);
    product->joined = ended->joined;
    product->again = HeldBytes();
    product->again_kernel = nullptr;
    product->sampled = {};
    if (!product->outcome.status.ok()) return End(std::move(product));
    Begin(std::move(product));
  };
  scheduler_.Submit(std::move(other));
}

// Where a product is computed again, and the canaries of a device that gave a wrong answer.
bool AnswerChecker::CanRun(Place place, const Problem& problem) const {
  const Device& device = *place.served->device;
  if (!place.served->readiness().ok() || !device.CheckSize(problem).ok()) return false;
  if (!place.kernel->available(device.profile().target).ok()) return false;
  if (!place.kernel->supports(problem).ok()) return false;
  const std::vector<DistrustedKernel> distrusted = place.served->distrusted(problem);
  return std::none_of(distrusted.begin(), distrusted.end(),
                      [&](const DistrustedKernel& one) { return one.kernel == place.kernel; });
}

bool AnswerChecker::MayUse(const Product& product, const ServedDevice& served) {
  const Identity* const caller = product.arrival.caller.get();
  return caller == nullptr || caller->grant.MayUse(served.device->info().name);
}

// A place with the same bits: an equal device, another kernel of the same instruction, or, if there
// is neither, the same kernel again.
AnswerChecker::Place AnswerChecker::EqualPlace(const Product& product) const {
  const DeviceInfo& own = product.served->device->info();
  const Kernel& kernel = product.kernel();
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    const bool is_equal = info.kind == own.kind && info.description == own.description &&
                          info.chip == own.chip && &served != product.served &&
                          MayUse(product, served);
    if (is_equal && CanRun({&served, &kernel}, product.job.problem)) return {&served, &kernel};
  }
  if (kernel.instruction != nullptr) {
    for (const Kernel& other : Catalog(own.kind)) {
      if (&other == &kernel || !ShareInstruction(other, kernel)) continue;
      if (CanRun({product.served, &other}, product.job.problem)) return {product.served, &other};
    }
  }
  return {product.served, &kernel};
}

AnswerChecker::Place AnswerChecker::PlaceForRetry(const Product& product) const {
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    if (!product.wanted_device.empty() && info.name != product.wanted_device) continue;
    if (!MayUse(product, served)) continue;
    if (!served.readiness().ok() || !served.device->CheckSize(product.job.problem).ok()) continue;
    const std::vector<DistrustedKernel> distrusted = served.distrusted(product.job.problem);
    Constraints constraints = product.constraints;
    constraints.distrusted = distrusted;
    const Kernel* const kernel =
        FindBest(Catalog(info.kind), product.job.problem, constraints, served.device->profile());
    if (kernel != nullptr && NeedsOf(product.check, *kernel, product.job.problem).ok()) {
      return {&served, kernel};
    }
  }
  return {};
}

// Runs one product with a known answer for each engine of the device.
void AnswerChecker::RunCanaries(const ServedDevice& served) {
  std::set<std::string_view> engines;
  for (const Kernel& kernel : Catalog(served.device->info().kind)) {
    if (engines.count(kernel.engine) != 0) continue;
    absl::StatusOr<std::unique_ptr<CanaryProduct>> made = MakeCanary(kernel);
    if (!made.ok() || !CanRun({&served, &kernel}, (*made)->job.problem)) continue;
    engines.insert(kernel.engine);
    std::shared_ptr<CanaryProduct> canary = *std::move(made);
    auto submission = std::make_unique<Submission>();
    submission->device = served.device;
    submission->job = canary->job;
    submission->job.keeps_kernel = true;
    scheduler_.SetTime(*submission, Predict(kernel, canary->job.problem, served.device->profile()));
    submission->caller = "canary";
    submission->done = [this, &served, &kernel, canary](std::unique_ptr<Submission> ended) {
      absl::Status status = ended->outcome.status;
      if (status.ok()) status = canary->Check(ended->outcome.d.bytes());
      EndCanary(served, kernel, status);
    };
    {
      MutexLock lock(&mutex_);
      ++canaries_;
    }
    scheduler_.Submit(std::move(submission));
  }
}

void AnswerChecker::EndCanary(const ServedDevice& served, const Kernel& kernel,
                              const absl::Status& status) {
  if (absl::IsDataLoss(status)) {
    served.device->trust().AddWrongAnswer(kernel);
    spdlog::error("event=canary_failed device={} kernel={} reason={}",
                  LogValue(served.device->info().name), kernel.name,
                  LogValue(std::string(status.message())));
  }
  MutexLock lock(&mutex_);
  --canaries_;
}

}  // namespace gemmd
