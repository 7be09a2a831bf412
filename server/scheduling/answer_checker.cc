// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/answer_checker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/catalog.h"
#include "kernels/or_no_memory.h"
#include "kernels/select.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "kernels/verify/checksum.h"
#include "kernels/verify/recompute.h"
#include "kernels/verify/sampled.h"
#include "server/scheduling/flat_operands.h"
#include "server/store/product_tensors.h"
#include "server/store/sha256.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

constexpr std::string_view kNoMemory = "verify: no memory for the operands in one piece";

// A wrong answer is computed again so often.
constexpr int kMostRetries = 2;

std::string HashOf(Piece bytes) {
  if (bytes.empty()) return "";
  const Sha256Digest digest = Sha256::Of(bytes);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::vector<std::byte> Copied(Piece bytes) { return {bytes.begin(), bytes.end()}; }

// The kernel that ran: the device may have taken another one than it was given.
const Kernel* KernelOf(const JobResult& result, const Kernel& given) {
  return result.outcome.kernel != nullptr ? result.outcome.kernel : &given;
}

// D, in memory of the host.
Piece ResultOf(const Job& job, const JobResult& result) {
  if (job.d.memory != nullptr) return {job.d.memory, static_cast<size_t>(job.d_bytes)};
  return result.outcome.d.bytes();
}

// Whether another product has written what this one reads or made: then nothing can be said of it.
bool IsOverwritten(const Job& job) {
  return job.tensors != nullptr && !job.tensors->is_unchanged();
}

std::string WhereOf(const verify::WrongElement& element) {
  return Concat("row ", element.row, ", column ", element.column, " of matrix ", element.batch);
}

}  // namespace

struct AnswerChecker::Task {
  std::unique_ptr<CheckedJob> job;
  JobResult result;  // That is checked.
  Done done;
  Place place;  // That gave the result.
  int64_t begun_ns = 0;
  int wrong_answers = 0;
  // For a product that is computed once more.
  Place again_place;
  HeldBytes again;
};

AnswerChecker::AnswerChecker(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                             Stats& stats, const Clock& clock, const VerifyOptions& options,
                             IncidentLog* log, std::function<std::string(size_t device)> chip_state)
    : devices_(devices),
      scheduler_(scheduler),
      stats_(stats),
      clock_(clock),
      options_(options),
      log_(log),
      chip_state_(std::move(chip_state)),
      threads_(options.threads) {}

AnswerChecker::~AnswerChecker() {
  {
    MutexLock lock(&mutex_);
    if (canaries_ == 0) return;
  }
  scheduler_.Stop(absl::UnavailableError("the server stopped"));
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return canaries_ == 0; });
}

void AnswerChecker::Check(std::unique_ptr<CheckedJob> job, JobResult result, Done done) {
  auto task = std::make_unique<Task>();
  task->place = {job->served, KernelOf(result, *job->job.kernel)};
  task->job = std::move(job);
  task->result = std::move(result);
  task->done = std::move(done);
  task->begun_ns = clock_.NowNs();
  ProductTensors* const tensors = task->job->job.tensors;
  if (tensors == nullptr) return Begin(std::move(task));
  tensors->BringToHost([this, task = std::move(task)](const absl::Status& status) mutable {
    status.ok() ? Begin(std::move(task)) : EndNotVerified(std::move(task), "unread");
  });
}

void AnswerChecker::Begin(std::unique_ptr<Task> task) {
  if (task->job->rule.mode == VerifyMode::kDuplicate) return ComputeOnceMore(std::move(task));
  const JobId id = task->result.id;
  threads_.Submit(id, [this, task = std::move(task)](verify::Draw& draw, AbortFlag abort) mutable {
    Verify(std::move(task), draw, abort);
  });
}

absl::StatusOr<verify::CheckResult> AnswerChecker::CheckOnce(const Task& task, verify::Draw& draw,
                                                             AbortFlag abort) {
  const CheckedJob& job = *task.job;
  return OrNoMemory(kNoMemory, [&] {
    const FlatOperands operands(job.job);
    const verify::CheckedProduct product =
        CheckedProductOf(job.job, *task.place.kernel, task.place.served->device->profile().target,
                         operands, ResultOf(job.job, task.result), abort);
    return job.rule.mode == VerifyMode::kSampled ? verify::CheckSample(product, job.rule.rate, draw)
                                                 : verify::CheckSums(product, draw);
  });
}

void AnswerChecker::Verify(std::unique_ptr<Task> task, verify::Draw& draw, AbortFlag abort) {
  const CheckedJob& job = *task->job;
  const absl::StatusOr<verify::CheckResult> check = CheckOnce(*task, draw, abort);
  if (!check.ok()) return EndEarly(std::move(task), check.status());
  if (IsOverwritten(job.job)) return EndNotVerified(std::move(task), "overwritten");
  if (check->end != verify::CheckEnd::kWrong) return EndOk(std::move(task), *check);
  const Place place = task->place;
  EndWrong(std::move(task), place, *check);
}

// A check that was ended early: by the caller, or because its deadline passed.
void AnswerChecker::EndEarly(std::unique_ptr<Task> task, const absl::Status& status) {
  if (!absl::IsCancelled(status)) return EndWith(std::move(task), status);
  const bool is_late = task->job->deadline_ns <= clock_.NowNs();
  EndWith(std::move(task),
          is_late ? absl::DeadlineExceededError("the deadline passed while D was checked")
                  : absl::CancelledError("cancelled while D was checked"));
}

void AnswerChecker::EndWith(std::unique_ptr<Task> task, absl::Status status) {
  CheckedResult checked = {.result = std::move(task->result),
                           .kernel = task->place.kernel,
                           .served = task->place.served};
  checked.result.outcome.status = std::move(status);
  checked.result.outcome.d = HeldBytes();
  std::move(task->done)(std::move(checked));
}

void AnswerChecker::EndOk(std::unique_ptr<Task> task, const verify::CheckResult& check) {
  const bool is_passed = check.end == verify::CheckEnd::kPassed;
  CheckedResult checked = {.kernel = task->place.kernel, .served = task->place.served};
  checked.verification = {.mode = task->job->rule.mode,
                          .end = is_passed ? VerifyEnd::kPassed : VerifyEnd::kNotVerified,
                          .reason = check.reason,
                          .elements_checked = check.elements_checked,
                          .miss_probability = check.miss_probability,
                          .cost = check.cost,
                          .least_error = check.least_error,
                          .verify_ns = clock_.NowNs() - task->begun_ns,
                          .wrong_answers = task->wrong_answers};
  if (task->again_place.kernel != nullptr) {
    checked.verification.kernel = task->again_place.kernel->name;
    checked.verification.device = task->again_place.served->device->info().name;
  }
  stats_.AddVerification(checked.verification);
  checked.result = std::move(task->result);
  std::move(task->done)(std::move(checked));
}

void AnswerChecker::EndNotVerified(std::unique_ptr<Task> task, std::string_view reason) {
  EndOk(std::move(task), {.end = verify::CheckEnd::kNotVerified,
                          .reason = reason,
                          .wrong = std::nullopt,
                          .miss_probability = 1});
}

// The scheduler gives each id to one job at a time: the product's own has ended.
Submission AnswerChecker::SubmissionFor(const Task& task, Place place) const {
  const CheckedJob& job = *task.job;
  const DeviceProfile& profile = place.served->device->profile();
  Submission submission;
  submission.device = place.served->device;
  submission.job = job.job;
  submission.job.id = task.result.id;
  submission.job.kernel = place.kernel;
  submission.job.keeps_kernel = true;
  // From memory of the host, into memory of its own.
  submission.job.tensors = nullptr;
  submission.job.forms = nullptr;
  submission.job.d = Destination();
  for (Source Job::*const source : {&Job::a, &Job::b, &Job::c}) {
    (submission.job.*source).is_resident = false;
  }
  submission.job.workspace_bytes =
      std::max(job.job.workspace_bytes, place.kernel->workspace_bytes(job.job.problem).value_or(0));
  submission.bytes = BytesRead(job.job.problem) + job.job.d_bytes;
  submission.predicted_ns = PredictedNs(*place.kernel, job.job.problem, profile) +
                            PredictedCopyNs(job.job.problem, profile);
  submission.deadline_ns = job.deadline_ns;
  submission.flow = job.flow;
  submission.connection = job.connection;
  submission.priority = job.priority;
  if (job.caller != nullptr) submission.share = job.caller->grant.share;
  return submission;
}

void AnswerChecker::ComputeOnceMore(std::unique_ptr<Task> task) {
  CheckedJob& job = *task->job;
  job.job.kernel = task->place.kernel;
  job.served = task->place.served;
  task->again_place = EqualPlace(job);
  Submission submission = SubmissionFor(*task, task->again_place);
  submission.done = [this, task = std::move(task)](JobResult again) mutable {
    if (!again.outcome.status.ok()) {
      return EndWith(std::move(task), std::move(again.outcome.status));
    }
    task->again_place.kernel = KernelOf(again, *task->again_place.kernel);
    task->again = std::move(again.outcome.d);
    const JobId id = task->result.id;
    threads_.Submit(id, [this, task = std::move(task)](verify::Draw&, AbortFlag abort) mutable {
      Compare(std::move(task), abort);
    });
  };
  scheduler_.Submit(std::move(submission));
}

void AnswerChecker::Compare(std::unique_ptr<Task> task, AbortFlag abort) {
  const Job& job = task->job->job;
  verify::CheckResult check =
      verify::CompareResults(job.problem, ResultOf(job, task->result), task->again.bytes());
  if (IsOverwritten(job)) return EndNotVerified(std::move(task), "overwritten");
  if (check.end != verify::CheckEnd::kWrong) return EndOk(std::move(task), check);
  Place blamed = task->place;
  if (verify::CanRecompute(*task->place.kernel).ok()) {
    const absl::StatusOr<bool> is_first_right = IsElementRight(*task, *check.wrong, abort);
    if (!is_first_right.ok()) return EndEarly(std::move(task), is_first_right.status());
    if (*is_first_right) {
      blamed = task->again_place;
      std::swap(check.wrong->got_bits, check.wrong->want_bits);
    }
  }
  EndWrong(std::move(task), blamed, check);
}

absl::StatusOr<bool> AnswerChecker::IsElementRight(const Task& task,
                                                   const verify::WrongElement& element,
                                                   AbortFlag abort) {
  const Job& job = task.job->job;
  return OrNoMemory(kNoMemory, [&]() -> absl::StatusOr<bool> {
    const FlatOperands operands(job);
    const verify::CheckedProduct product =
        CheckedProductOf(job, *task.place.kernel, task.place.served->device->profile().target,
                         operands, ResultOf(job, task.result), abort);
    verify::CheckResult first;
    RETURN_IF_ERROR(verify::Recompute(product, element.batch, absl::MakeConstSpan(&element.row, 1),
                                      absl::MakeConstSpan(&element.column, 1), first));
    return first.end == verify::CheckEnd::kPassed;
  });
}

void AnswerChecker::EndWrong(std::unique_ptr<Task> task, Place place,
                             const verify::CheckResult& check) {
  const std::string& device = place.served->device->info().name;
  DeviceTrust* const trust = place.served->trust;
  const bool took_out = trust != nullptr && trust->AddWrongAnswer(*place.kernel);
  stats_.AddVerification(task->job->rule.mode, VerifyEnd::kFailed, clock_.NowNs() - task->begun_ns);
  const absl::Status noted = OrNoMemory("no memory for a copy of the operands", [&] {
    Note(*task, place, check, took_out);
    return absl::OkStatus();
  });
  if (!noted.ok()) {
    spdlog::error("event=incident_not_kept reason={}", LogValue(std::string(noted.message())));
  }
  spdlog::error("event=wrong_answer device={} kernel={} problem={} element={} mode={} out={}",
                LogValue(device), place.kernel->name, LogValue(Describe(task->job->job.problem)),
                LogValue(WhereOf(*check.wrong)), NameOf(task->job->rule.mode), took_out);
  if (trust != nullptr && trust->status().ok()) RunCanaries(*place.served);
  ++task->wrong_answers;
  // A tensor is not written once more: others may have read it.
  const bool is_tried =
      options_.retry && task->wrong_answers <= kMostRetries && task->job->job.d.memory == nullptr;
  const Place elsewhere = is_tried ? PlaceForRetry(*task->job) : Place();
  if (elsewhere.kernel != nullptr) return ComputeElsewhere(std::move(task), elsewhere);
  // A new tensor is never shown.
  const Destination& d = task->job->job.d;
  const bool is_left = d.memory != nullptr && !d.is_new;
  absl::Status status = absl::DataLossError(
      Concat("d: ", place.kernel->name, " on ", device, " gave a wrong element at ",
             WhereOf(*check.wrong), is_left ? "; its tensor is undefined" : "; it is not answered",
             " (verify ", NameOf(task->job->rule.mode), ")"));
  EndWith(std::move(task), std::move(status));
}

void AnswerChecker::Note(const Task& task, Place place, const verify::CheckResult& check,
                         bool took_out_device) {
  if (log_ == nullptr) return;
  const Job& job = task.job->job;
  Incident incident;
  incident.time_unix_ns = absl::ToUnixNanos(absl::Now());
  incident.device = place.served->device->info().name;
  incident.kernel = std::string(place.kernel->name);
  incident.problem = Describe(job.problem);
  incident.mode = task.job->rule.mode;
  incident.element = *check.wrong;
  incident.wrong_elements = check.wrong_elements;
  incident.element_type = job.problem.d.type;
  if (chip_state_) {
    incident.chip_state = chip_state_(static_cast<size_t>(place.served - devices_.data()));
  }
  incident.request_id = task.job->request_id;
  incident.took_out_device = took_out_device;
  // Where there is no memory for the operands in one piece, the incident is noted without them.
  std::shared_ptr<KeptProduct> kept;
  OrNoMemory(kNoMemory, [&] {
    kept = Keep(job, incident);
    return absl::OkStatus();
  }).IgnoreError();
  log_->Add(std::move(incident), std::move(kept));
}

std::shared_ptr<KeptProduct> AnswerChecker::Keep(const Job& job, Incident& incident) const {
  const FlatOperands operands(job);
  incident.a_sha256 = HashOf(operands.a.bytes());
  incident.b_sha256 = HashOf(operands.b.bytes());
  incident.c_sha256 = HashOf(operands.c.bytes());
  incident.bias_sha256 = HashOf(operands.bias.bytes());
  auto kept = std::make_shared<KeptProduct>();
  kept->problem = job.problem;
  kept->a_scale = operands.a_scale;
  kept->b_scale = operands.b_scale;
  kept->a_factors = Copied(operands.a_factors.bytes());
  kept->b_factors = Copied(operands.b_factors.bytes());
  kept->has_operands = BytesRead(job.problem) <= log_->most_kept_bytes();
  if (kept->has_operands) {
    kept->a = Copied(operands.a.bytes());
    kept->b = Copied(operands.b.bytes());
    kept->c = Copied(operands.c.bytes());
    kept->bias = Copied(operands.bias.bytes());
  }
  return kept;
}

void AnswerChecker::ComputeElsewhere(std::unique_ptr<Task> task, Place place) {
  Submission submission = SubmissionFor(*task, place);
  submission.done = [this, place, task = std::move(task)](JobResult result) mutable {
    task->place = {place.served, KernelOf(result, *place.kernel)};
    task->again = HeldBytes();
    task->again_place = Place();
    task->result.outcome = std::move(result.outcome);
    if (!task->result.outcome.status.ok()) {
      absl::Status status = task->result.outcome.status;
      return EndWith(std::move(task), std::move(status));
    }
    task->job->job.kernel = place.kernel;
    task->job->served = place.served;
    if (task->job->rule.mode == VerifyMode::kDuplicate) return ComputeOnceMore(std::move(task));
    const JobId id = task->result.id;
    threads_.Submit(id,
                    [this, task = std::move(task)](verify::Draw& draw, AbortFlag abort) mutable {
                      Verify(std::move(task), draw, abort);
                    });
  };
  scheduler_.Submit(std::move(submission));
}

}  // namespace gemmd
