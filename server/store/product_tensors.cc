// SPDX-License-Identifier: Apache-2.0
#include "server/store/product_tensors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/device/job.h"

namespace gemmd {

absl::StatusOr<std::unique_ptr<ProductTensors>> ProductTensors::Make(TensorStore& store,
                                                                     std::string_view token,
                                                                     std::string_view owner) {
  ASSIGN_OR_RETURN(TensorStore::SessionUse session, store.Use(token, owner));
  return In(store, std::make_shared<const TensorStore::SessionUse>(std::move(session)));
}

std::unique_ptr<ProductTensors> ProductTensors::In(
    TensorStore& store, std::shared_ptr<const TensorStore::SessionUse> session) {
  return std::unique_ptr<ProductTensors>(new ProductTensors(store, std::move(session)));
}

// Ended together: each separate End would wait for the store's lock.
ProductTensors::~ProductTensors() {
  const std::array uses = {&parts_[0].use, &parts_[1].use, &parts_[2].use, &d_use_};
  store_.End(uses);
}

absl::Status ProductTensors::Find(const Names& names) {
  absl::InlinedVector<TensorStore::Wanted, kMatrixRoles.size() + 1> wanted;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (names.read[i]) wanted.push_back({&*names.read[i], &parts_[i].use});
  }
  if (names.written) wanted.push_back({&*names.written, &d_use_});
  return store_.Find(*session_, wanted);
}

absl::Status ProductTensors::MakeNew(TensorSpec spec, Keeping keep) {
  ASSIGN_OR_RETURN(draft_, store_.MakeDraft(*session_, std::move(spec), std::move(keep),
                                            /*is_result=*/true));
  return absl::OkStatus();
}

void ProductTensors::SetPart(OperandRole operand, int64_t offset, int64_t bytes) {
  Part& part = At(operand);
  part.offset = offset;
  part.bytes = bytes;
}

void ProductTensors::SetFactors(OperandRole operand, int64_t offset, int64_t bytes) {
  Part& part = At(operand);
  part.factors_offset = offset;
  part.factors_bytes = bytes;
}

Source ProductTensors::AddFactors(absl::Span<const float> factors) {
  Piece& piece = factors_[factors_count_++];
  piece = PieceOf(factors);
  Source source;
  source.pieces = absl::MakeConstSpan(&piece, 1);
  source.bytes = static_cast<int64_t>(piece.size());
  return source;
}

int64_t ProductTensors::resident_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.bytes + part.factors_bytes;
  return bytes;
}

int64_t ProductTensors::copied_bytes() const {
  return is_in_place() ? At(OperandRole::kC).bytes : 0;
}

int64_t ProductTensors::BytesOn(std::string_view device) const {
  const auto bytes_of = [device](const TensorStore::TensorUse& use, int64_t bytes) {
    return use.tensor() != nullptr && use->bytes->is_on(device) ? bytes : 0;
  };
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += bytes_of(part.use, part.bytes + part.factors_bytes);
  if (written() != nullptr && !is_in_place()) bytes += bytes_of(d_use_, d_use_->spec.bytes);
  return bytes;
}

bool ProductTensors::is_in_place() const {
  return written() != nullptr && read(OperandRole::kC) == written();
}

Source ProductTensors::SourceOf(OperandRole operand) {
  Part& part = At(operand);
  Source source;
  if (part.bytes == 0) return source;
  const Piece whole(part.use->bytes->host() + part.offset, static_cast<size_t>(part.bytes));
  // A matrix in two pieces is assembled elsewhere before the launch.
  const bool is_copied = operand == OperandRole::kC && is_in_place() && part.bytes > 1;
  const size_t first = is_copied ? whole.size() / 2 : whole.size();
  part.pieces = {whole.first(first), whole.subspan(first)};
  source.pieces = absl::MakeConstSpan(part.pieces.data(), is_copied ? 2 : 1);
  source.bytes = part.bytes;
  source.is_resident = true;
  return source;
}

void ProductTensors::PointTo(const DeviceCopies::Use& copy, const Part& part, OperandRole role,
                             Job& job) {
  job[role] = {.pieces = {}, .block = copy.block(), .offset = part.offset, .bytes = part.bytes};
  if (part.factors_bytes == 0) return;
  job[ScaleOf(role)] = {.pieces = {},
                        .block = copy.block(),
                        .offset = part.factors_offset,
                        .bytes = part.factors_bytes};
}

Source ProductTensors::SourceOfFactors(OperandRole operand) {
  Part& part = At(operand);
  part.factors =
      Piece(part.use->bytes->host() + part.factors_offset, static_cast<size_t>(part.factors_bytes));
  Source source;
  source.pieces = absl::MakeConstSpan(&part.factors, 1);
  source.bytes = part.factors_bytes;
  source.is_resident = true;
  return source;
}

absl::Status ProductTensors::Place(Job& job) {
  const std::array<const TensorStore::TensorUse*, 3> uses = {&parts_[0].use, &parts_[1].use,
                                                             &parts_[2].use};
  RETURN_IF_ERROR(store_.BeginProduct(uses, d_use_));
  for (const OperandRole role : kMatrixRoles) {
    if (read(role) == nullptr) continue;
    job[role] = SourceOf(role);
    if (At(role).factors_bytes > 0) job[ScaleOf(role)] = SourceOfFactors(role);
  }
  if (written() != nullptr) job.d.memory = d_use_->bytes->host() + d_offset_;
  if (draft_) job.d = {.memory = draft_->bytes->host(), .is_new = true};
  MarkStaying(job.problem);
  job.tensors = this;
  job.forms = this;
  return absl::OkStatus();
}

void ProductTensors::MarkStaying(Problem& problem) const {
  const auto has_factors = [this](OperandRole role) {
    return read(role) != nullptr && read(role)->spec.blocks.has_value();
  };
  problem.a_stays = read(OperandRole::kA) != nullptr && !problem.a.is_sparse();
  problem.b_stays = read(OperandRole::kB) != nullptr;
  problem.a_factors_stay = has_factors(OperandRole::kA);
  problem.b_factors_stay = has_factors(OperandRole::kB);
}

// A tensor that D overwrites is handled with D. If several products run as one, a matrix may be
// assembled from all of theirs.
bool ProductTensors::IsReadAlone(const Part& part, const Source& source) const {
  return part.bytes > 0 && source.pieces.data() == part.pieces.data() &&
         part.use.tensor() != d_use_.tensor();
}

void ProductTensors::Bring(DeviceCopies* copies, Job& job,
                           absl::AnyInvocable<void(const absl::Status&) &&> done) {
  bringing_ = {.copies = copies, .job = &job, .done = std::move(done)};
  NoteEditions();
  absl::InlinedVector<OperandRole, kMatrixRoles.size()> brought;
  for (const OperandRole role : kMatrixRoles) {
    if (IsReadAlone(At(role), job[role])) brought.push_back(role);
  }
  {
    MutexLock lock(&mutex_);
    to_bring_ = static_cast<int>(brought.size()) + 1;
  }
  for (const OperandRole role : brought) BringPart(role);
  EndBringing(absl::OkStatus());
}

void ProductTensors::BringPart(OperandRole role) {
  Part& part = At(role);
  if (bringing_.copies == nullptr) return BringPartToHost(part);
  bringing_.copies->Bring(part.use->bytes,
                          [this, role, &part](absl::StatusOr<DeviceCopies::Use> copy) {
                            if (!copy.ok()) return BringPartToHost(part);
                            part.copy = *std::move(copy);
                            PointTo(part.copy, part, role, *bringing_.job);
                            EndBringing(absl::OkStatus());
                          });
}

void ProductTensors::BringPartToHost(Part& part) {
  part.use->bytes->BringToHost([this, &part](const absl::Status& status) {
    EndBringing(WithName(status, *part.use.tensor()));
  });
}

void ProductTensors::EndBringing(const absl::Status& status) {
  absl::Status brought;
  {
    MutexLock lock(&mutex_);
    brought_.Update(status);
    if (--to_bring_ > 0) return;
    brought = brought_;
  }
  const bool is_to_host = bringing_.job == nullptr;
  if (is_to_host || !brought.ok() || !takes_d()) return FinishBringing(brought);
  TakeD(bringing_.copies);
}

void ProductTensors::TakeD(DeviceCopies* place) {
  d_place_ = place;
  BytesOfD()->TakeWriting(place, [this] { BringD(); });
}

void ProductTensors::BringD() {
  if (d_place_ == nullptr) {
    const absl::Status room = draft_ ? BytesOfD()->TakeRoom() : absl::OkStatus();
    if (!room.ok()) return BeginD(room);
    return BytesOfD()->BringToHost([this](const absl::Status& status) { BeginD(status); });
  }
  auto brought = [this](absl::StatusOr<DeviceCopies::Use> copy) {
    if (copy.ok()) {
      d_copy_ = *std::move(copy);
      return BeginD(absl::OkStatus());
    }
    BytesOfD()->EndWriting(d_place_, /*has_begun=*/false, /*is_ok=*/false);
    TakeD(nullptr);
  };
  draft_ ? d_place_->MakeNew(BytesOfD(), std::move(brought))
         : d_place_->Bring(BytesOfD(), std::move(brought));
}

void ProductTensors::BeginD(const absl::Status& status) {
  if (!status.ok()) {
    BytesOfD()->EndWriting(d_place_, /*has_begun=*/false, /*is_ok=*/false);
    return FinishBringing(draft_ ? status : WithName(status, *d_use_.tensor()));
  }
  BeginWritingD();
  if (d_place_ != nullptr) PointToD(*bringing_.job);
  FinishBringing(absl::OkStatus());
}

void ProductTensors::PointToD(Job& job) {
  job.d = {.block = d_copy_.block(), .offset = d_offset_};
  for (const OperandRole role : kMatrixRoles) {
    const Part& part = At(role);
    if (part.bytes > 0 && part.use.tensor() == d_use_.tensor()) PointTo(d_copy_, part, role, job);
  }
}

bool ProductTensors::TakeAtOnce(DeviceCopies* place, Job& job) {
  if (draft_) return false;
  NoteEditions();
  for (const OperandRole role : kMatrixRoles) {
    if (!IsReadAlone(At(role), job[role])) continue;
    if (!TakePartAtOnce(place, role, job)) return false;
  }
  if (written() == nullptr) return true;
  if (!TakeDAtOnce(place)) return false;
  if (place != nullptr) PointToD(job);
  return true;
}

bool ProductTensors::TakePartAtOnce(DeviceCopies* place, OperandRole role, Job& job) {
  Part& part = At(role);
  if (place == nullptr) return part.use->bytes->is_on_host();
  part.copy = place->TakeAtOnce(*part.use->bytes);
  if (part.copy.block() == 0) return false;
  PointTo(part.copy, part, role, job);
  return true;
}

bool ProductTensors::TakeDAtOnce(DeviceCopies* place) {
  TensorBytes& bytes = *BytesOfD();
  if (!bytes.TakeWritingAtOnce(place)) return false;
  d_place_ = place;
  if (place != nullptr) d_copy_ = place->TakeAtOnce(bytes);
  has_right_ = place != nullptr ? d_copy_.block() != 0 : bytes.is_on_host();
  if (!has_right_) bytes.EndWriting(place, /*has_begun=*/false, /*is_ok=*/false);
  return has_right_;
}

void ProductTensors::BeginTaken() {
  if (std::exchange(has_right_, false)) BeginWritingD();
}

void ProductTensors::GiveBackTaken() {
  if (std::exchange(has_right_, false)) {
    BytesOfD()->EndWriting(d_place_, /*has_begun=*/false, /*is_ok=*/false);
  }
  ReleaseCopies();
}

void ProductTensors::ReleaseCopies() {
  d_copy_ = DeviceCopies::Use();
  for (Part& part : parts_) part.copy = DeviceCopies::Use();
}

void ProductTensors::FinishBringing(const absl::Status& status) {
  std::exchange(bringing_.done, nullptr)(status);
}

absl::Status ProductTensors::EndJob(const absl::Status& status) {
  if (std::exchange(writes_d_, false)) {
    BytesOfD()->EndWriting(d_place_, /*has_begun=*/true, status.ok());
  }
  ReleaseCopies();
  if (!absl::IsFailedPrecondition(status)) return status;
  for (const TensorStore::TensorUse* const use :
       {&parts_[0].use, &parts_[1].use, &parts_[2].use, &d_use_}) {
    if (use->tensor() == nullptr || !(*use)->bytes->is_lost()) continue;
    return WithName(absl::FailedPreconditionError("tensor lost"), *use->tensor());
  }
  return absl::UnavailableError(Concat("device: lost before the product started, try again: ",
                                       std::string(status.message())));
}

void ProductTensors::NoteEditions() {
  for (Part& part : parts_) {
    if (part.bytes > 0) part.edition = part.use->bytes->edition();
  }
}

void ProductTensors::BeginWritingD() {
  d_edition_ = BytesOfD()->edition();
  BytesOfD()->BeginWriting(d_place_);
  writes_d_ = true;
}

void ProductTensors::BringToHost(absl::AnyInvocable<void(const absl::Status&) &&> done) {
  std::vector<std::shared_ptr<TensorBytes>> all;
  for (const Part& part : parts_) {
    if (part.bytes > 0) all.push_back(part.use->bytes);
  }
  if (takes_d()) all.push_back(BytesOfD());
  bringing_ = {.copies = nullptr, .job = nullptr, .done = std::move(done)};
  {
    MutexLock lock(&mutex_);
    brought_ = absl::OkStatus();
    to_bring_ = static_cast<int>(all.size()) + 1;
  }
  for (const std::shared_ptr<TensorBytes>& bytes : all) {
    bytes->BringToHost([this](const absl::Status& status) { EndBringing(status); });
  }
  EndBringing(absl::OkStatus());
}

bool ProductTensors::BeginReading(DeviceCopies& copies, JobPlaces& places) {
  JobPlaces found;
  for (const OperandRole role : kMatrixRoles) {
    Part& part = At(role);
    if (part.bytes == 0) continue;
    part.copy = copies.TakeAtOnce(*part.use->bytes);
    found[role] = {.block = part.copy.block(), .offset = part.offset};
    if (part.factors_bytes > 0) {
      found[ScaleOf(role)] = {.block = part.copy.block(), .offset = part.factors_offset};
    }
    if (part.copy.block() != 0) continue;
    ReleaseCopies();
    return false;
  }
  if (takes_d()) {
    d_copy_ = copies.TakeAtOnce(*BytesOfD());
    found.d = {.block = d_copy_.block(), .offset = d_offset_};
    if (d_copy_.block() == 0) {
      ReleaseCopies();
      return false;
    }
  }
  places = found;
  return true;
}

bool ProductTensors::is_unchanged() const {
  // The job's own write changed the edition twice.
  const auto is_same = [](const TensorBytes& bytes, PlacedBytes::Edition before, bool was_written) {
    const PlacedBytes::Edition now = bytes.edition();
    return before.is_settled && now.is_settled &&
           now.number == before.number + (was_written ? 2 : 0);
  };
  for (const Part& part : parts_) {
    if (part.bytes == 0) continue;
    const bool was_written = takes_d() && part.use->bytes == BytesOfD();
    if (!is_same(*part.use->bytes, part.edition, was_written)) return false;
  }
  return !takes_d() || is_same(*BytesOfD(), d_edition_, /*was_written=*/true);
}

OperandForm ProductTensors::TakeForm(const Source& source, const MatrixLayout& layout,
                                     int64_t matrices, const DerivedOperand& derived) {
  for (Part& part : parts_) {
    // A and B share a part if both are the same source.
    if (!IsReadAlone(part, source) || part.form.form != nullptr) continue;
    part.form = store_.TakeForm(part.use, {.form = derived.form,
                                           .bytes = derived.bytes,
                                           .offset = part.offset,
                                           .layout = layout,
                                           .matrices = matrices});
    if (part.form.form == nullptr) return {};
    return {part.form.form->data(), part.form.is_made};
  }
  return {};
}

void ProductTensors::EndForms(bool is_ok) {
  for (Part& part : parts_) {
    if (part.form.form != nullptr && !part.form.is_made) store_.forms().End(part.form.form, is_ok);
    part.form = {};
  }
}

void ProductTensors::TakeFormsOn(DeviceCopies& copies, Job& job) {
  if (job.predicted.kernel_ns > kLongestWholeLaunchNs) return;
  const auto take = [&](OperandRole role, mma::Operand operand, const Source& source,
                        const MatrixLayout& layout, FormPlace& place) {
    Part& part = At(role);
    const bool is_whole = source.block != 0 && part.copy.block() == source.block;
    // The form of a sparse A is used together with the values in the tensor, which somebody may
    // overwrite in between.
    if (!is_whole || layout.is_sparse()) return;
    const absl::StatusOr<DerivedOperand> derived = job.kernel->derived(job.problem, operand);
    if (!derived.ok() || derived->bytes == 0) return;
    part.device_form = copies.TakeForm(
        part.copy, {.form = derived->form,
                    .bytes = derived->bytes,
                    .offset = part.offset,
                    .layout = layout,
                    .matrices = layout.batch_stride_bytes == 0 ? 1 : job.problem.batch});
    if (part.device_form.form == nullptr) return;
    place = {.block = part.device_form.block,
             .bytes = derived->bytes,
             .is_made = part.device_form.is_made ? 1U : 0U};
  };
  take(OperandRole::kA, mma::Operand::kA, job.a, job.problem.a, job.a_form);
  take(OperandRole::kB, mma::Operand::kB, job.b, job.problem.b, job.b_form);
}

void ProductTensors::EndFormsOn(DeviceCopies& copies, bool are_made) {
  for (Part& part : parts_) {
    if (part.device_form.form != nullptr) copies.EndForm(std::move(part.device_form), are_made);
    part.device_form = {};
  }
}

absl::StatusOr<std::optional<TensorState>> ProductTensors::Finish(bool is_ok) {
  std::optional<TensorState> state;
  if (!is_ok) {
    draft_.reset();
  } else if (draft_) {
    ASSIGN_OR_RETURN(state, store_.Publish(*session_, *std::move(draft_)));
    draft_.reset();
  } else if (written() != nullptr) {
    state = store_.StateOf(d_use_);
  }
  if (state) store_.KeepOnHost(*state).IgnoreError();
  return state;
}

namespace {

// The members of a joined job whose tensors are all on a device already: moving tensors, or
// waiting, would delay the other members.
class BroughtJobs {
 public:
  // `place` is null if the device reads host memory.
  explicit BroughtJobs(DeviceCopies* place) : place_(place) {}

  // The job has members. Returns false, without any effect, if a tensor is not there, or others
  // have the right to overwrite it elsewhere. Call once, first.
  bool TakeAtOnce(const Job& job);

  // The job for the device; borrows this object.
  Job TakeJob();

  // Call once when the job has ended: adds the outcome of each member.
  void End(JobOutcome& outcome);

 private:
  DeviceCopies* const place_;
  std::vector<Job> members_;
  std::unique_ptr<JoinedJob> joined_;
};

bool BroughtJobs::TakeAtOnce(const Job& job) {
  members_.reserve(job.members.size());
  const Job& first = *job.members.front();
  bool are_there = true;
  for (const Job* const one : job.members) {
    Job& member = members_.emplace_back(*one);
    // An operand shared by all members is brought once.
    for (const OperandRole role : kMatrixRoles) {
      if (one != &first && IsSamePlace(member[role], first[role])) {
        member[role] = members_.front()[role];
      }
    }
    are_there = member.tensors == nullptr || member.tensors->TakeAtOnce(place_, member);
    if (!are_there) break;
  }
  if (are_there) {
    std::vector<const Job*> members;
    for (const Job& member : members_) members.push_back(&member);
    joined_ = JoinedJob::Of(job, std::move(members));
    are_there = joined_->Gather().ok();
  }
  for (const Job& member : members_) {
    if (member.tensors == nullptr) continue;
    are_there ? member.tensors->BeginTaken() : member.tensors->GiveBackTaken();
  }
  return are_there;
}

// A shared operand is taken from the first member.
Job BroughtJobs::TakeJob() {
  Job job = joined_->job();
  ProductTensors* const first = members_.front().tensors;
  if (place_ != nullptr && first != nullptr) first->TakeFormsOn(*place_, job);
  return job;
}

void BroughtJobs::End(JobOutcome& outcome) {
  ProductTensors* const first = members_.front().tensors;
  if (place_ != nullptr && first != nullptr) first->EndFormsOn(*place_, outcome.made_forms);
  outcome.members.resize(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    JobOutcome& own = outcome.members[i];
    ProductTensors* const tensors = members_[i].tensors;
    own.status = tensors == nullptr ? outcome.status : tensors->EndJob(outcome.status);
    own.wait_ns = outcome.wait_ns;
    own.copy_in_ns = outcome.copy_in_ns;
    own.compute_ns = outcome.compute_ns;
    own.copy_out_ns = outcome.copy_out_ns;
    own.kernel = joined_->job().kernel;
  }
}

}  // namespace

ResidentDevice::ResidentDevice(std::unique_ptr<Device> device)
    : copies_(device->memory() == nullptr
                  ? nullptr
                  : std::make_shared<DeviceCopies>(*device->memory(), device->info().name)),
      device_(std::move(device)) {}

ResidentDevice::~ResidentDevice() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  // Tensors that outlive the device must not free memory there.
  if (copies_ != nullptr) copies_->Close();
  // A thread of another device may have brought a tensor here for a job that has ended meanwhile.
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return on_their_way_.empty(); });
}

void ResidentDevice::Submit(const Job& job, Done done) {
  if (!job.members.empty()) return SubmitJoined(job, std::move(done));
  if (job.tensors == nullptr) return device_->Submit(job, std::move(done));
  Job there = job;
  if (there.tensors->TakeAtOnce(copies_.get(), there)) {
    there.tensors->BeginTaken();
    return SubmitThere(there, /*bring_ns=*/0, std::move(done));
  }
  auto bringing = std::make_unique<Bringing>(Bringing{there, std::move(done), clock_.NowNs()});
  {
    MutexLock lock(&mutex_);
    on_their_way_.emplace(job.id, false);
  }
  Job& brought = bringing->job;
  job.tensors->Bring(copies_.get(), brought,
                     [this, bringing = std::move(bringing)](const absl::Status& status) mutable {
                       SubmitBrought(std::move(bringing), status);
                     });
}

void ResidentDevice::Recompute(const Job& job, DeviceMemory::Recomputation order,
                               DeviceMemory::RecomputeDone done) {
  if (copies_ == nullptr) return Device::Recompute(job, std::move(order), std::move(done));
  ProductTensors* const tensors = job.tensors;
  if (!tensors->BeginReading(*copies_, order.task.places)) {
    return std::move(done)(absl::FailedPreconditionError("a tensor is no longer on the device"));
  }
  DeviceMemory::RecomputeDone end =
      [tensors, done = std::move(done)](absl::StatusOr<DeviceMemory::Recomputed> result) mutable {
        tensors->EndReading();
        std::move(done)(std::move(result));
      };
  if (copies_->Recompute(order, end)) return;
  std::move(end)(absl::UnavailableError("the server is stopping"));
}

void ResidentDevice::SubmitJoined(const Job& job, Done done) {
  const bool has_tensors =
      std::any_of(job.members.begin(), job.members.end(),
                  [](const Job* member) { return member->tensors != nullptr; });
  if (!has_tensors) return device_->Submit(job, std::move(done));
  auto brought = std::make_unique<BroughtJobs>(copies_.get());
  if (!brought->TakeAtOnce(job)) return SubmitSeparately(job, std::move(done));
  const Job all = brought->TakeJob();
  device_->Submit(
      all, [brought = std::move(brought), done = std::move(done)](JobOutcome outcome) mutable {
        brought->End(outcome);
        std::move(done)(std::move(outcome));
      });
}

// Submits each member separately, as if never joined.
void ResidentDevice::SubmitSeparately(const Job& job, Done done) {
  auto separate = std::make_shared<SeparateMembers>();
  separate->left = job.members.size();
  separate->outcome.members.resize(job.members.size());
  separate->done = std::move(done);
  const std::vector<const Job*> members(job.members.begin(), job.members.end());
  {
    MutexLock lock(&mutex_);
    std::vector<JobId>& ids = separate_[job.id];
    for (const Job* const member : members) ids.push_back(member->id);
  }
  for (size_t i = 0; i < members.size(); ++i) {
    Submit(*members[i], [this, separate, i, id = job.id](JobOutcome outcome) {
      separate->outcome.members[i] = std::move(outcome);
      if (--separate->left > 0) return;
      {
        MutexLock lock(&mutex_);
        separate_.erase(id);
      }
      std::move(separate->done)(std::move(separate->outcome));
    });
  }
}

void ResidentDevice::SubmitBrought(std::unique_ptr<Bringing> bringing, const absl::Status& status) {
  const JobId id = bringing->job.id;
  absl::Status refused = status;
  {
    MutexLock lock(&mutex_);
    if (is_stopping_) refused = absl::UnavailableError("the server is stopping");
    if (on_their_way_[id]) refused = AbortedLaunch();
    if (!refused.ok()) on_their_way_.erase(id);
  }
  if (!refused.ok()) {
    JobOutcome outcome;
    outcome.status = refused;
    bringing->job.tensors->EndJob(refused).IgnoreError();
    return std::move(bringing->done)(std::move(outcome));
  }
  SubmitThere(bringing->job, clock_.NowNs() - bringing->began_ns, std::move(bringing->done));
  bool is_aborted = false;
  {
    MutexLock lock(&mutex_);
    // The job may have been aborted before the device knew it.
    is_aborted = on_their_way_[id];
  }
  if (is_aborted) device_->Abort(id);
  MutexLock lock(&mutex_);
  on_their_way_.erase(id);
}

void ResidentDevice::SubmitThere(Job& job, int64_t bring_ns, Done done) {
  DeviceCopies* const copies = copies_.get();
  if (copies != nullptr) job.tensors->TakeFormsOn(*copies, job);
  device_->Submit(job, [bring_ns, copies, tensors = job.tensors,
                        done = std::move(done)](JobOutcome outcome) mutable {
    outcome.copy_in_ns += bring_ns;
    if (copies != nullptr) tensors->EndFormsOn(*copies, outcome.made_forms);
    outcome.status = tensors->EndJob(outcome.status);
    std::move(done)(std::move(outcome));
  });
}

void ResidentDevice::Abort(JobId id) {
  std::vector<JobId> members;
  {
    MutexLock lock(&mutex_);
    if (const auto separate = separate_.find(id); separate != separate_.end())
      members = separate->second;
    const auto found = on_their_way_.find(id);
    if (found != on_their_way_.end()) found->second = true;
  }
  if (members.empty()) return device_->Abort(id);
  for (const JobId member : members) Abort(member);
}

DeviceCondition ResidentDevice::condition() const {
  DeviceCondition condition = device_->condition();
  if (copies_ == nullptr) return condition;
  const DeviceCopies::Counts copies = copies_->counts();
  condition.tensor_bytes = copies.bytes;
  condition.tensor_hits = copies.hits;
  condition.tensors_brought = copies.made;
  condition.tensors_evicted = copies.evictions;
  condition.tensors_written_back = copies.written_back;
  return condition;
}

std::unique_ptr<Device> WithTensors(std::unique_ptr<Device> device, TensorStore& store) {
  auto resident = std::make_unique<ResidentDevice>(std::move(device));
  store.AddDevice(resident->info().name, resident->copies());
  return resident;
}

}  // namespace gemmd
