// SPDX-License-Identifier: Apache-2.0
#include "server/device/paneled_job.h"

#include <optional>
#include <utility>

#include "kernels/kernel.h"
#include "kernels/text.h"

namespace gemmd {

PaneledJob::PaneledJob(const Job& job, const JobPlaces& places, const PanelPlan& plan,
                       Device::Done done, Calls calls)
    : places_(places), plan_(plan), done_(std::move(done)), calls_(std::move(calls)), job_(job) {
  // Every panel copies its part of them again.
  for (Source* const source :
       {&job_.a, &job_.b, &job_.c, &job_.bias, &job_.a_scale, &job_.b_scale}) {
    source->keeper = nullptr;
  }
}

void PaneledJob::Start() {
  calls_.work([self = shared_from_this()] {
    Job& job = self->job_;
    if (job.d.block == 0 && job.d.memory == nullptr && job.d_bytes > 0) {
      std::optional<HeldBytes> memory = HeldBytes::Zeros(job.d_bytes);
      if (!memory.has_value()) {
        return self->End(absl::ResourceExhaustedError(
            Concat("d: no memory for ", job.d_bytes, " bytes of a result")));
      }
      self->d_ = *std::move(memory);
      job.d.memory = self->d_.bytes().data();
    }
    self->RunNext();
  });
}

void PaneledJob::RunNext() {
  if (is_aborted_) return End(AbortedLaunch());
  const Job panel = JobOfPanel(job_, places_, plan_.at(next_), pieces_);
  const JobId id = job_.id;
  calls_.submit(panel, [self = shared_from_this()](JobOutcome outcome) {
    self->EndPanel(std::move(outcome));
  });
  // It may have been aborted since the last look, when the device did not know the panel yet.
  if (is_aborted_) calls_.abort(id);
}

void PaneledJob::EndPanel(JobOutcome outcome) {
  if (next_ == 0) outcome_.wait_ns = outcome.wait_ns;
  outcome_.copy_in_ns += outcome.copy_in_ns;
  outcome_.compute_ns += outcome.compute_ns;
  outcome_.copy_out_ns += outcome.copy_out_ns;
  if (next_ > 0 && absl::IsUnavailable(outcome.status)) {
    return End(
        absl::AbortedError(Concat("device: lost after panel ", next_, " of ", plan_.count(),
                                  " of the product: ", std::string(outcome.status.message()))));
  }
  if (!outcome.status.ok() || ++next_ == plan_.count()) return End(outcome.status);
  calls_.work([self = shared_from_this()] { self->RunNext(); });
}

void PaneledJob::End(const absl::Status& status) {
  if (!status.ok()) outcome_ = {.status = status, .wait_ns = outcome_.wait_ns};
  if (status.ok()) outcome_.d = std::move(d_);
  std::move(done_)(std::move(outcome_));
  calls_.ended(*this);
}

}  // namespace gemmd
