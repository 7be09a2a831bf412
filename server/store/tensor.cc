// SPDX-License-Identifier: Apache-2.0
#include "server/store/tensor.h"

#include <utility>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/store/kept_forms.h"

namespace gemmd {

absl::StatusOr<TensorSpec> MakeTensorSpec(const MatrixLayout& layout, int64_t matrices,
                                          std::vector<float> scale) {
  ASSIGN_OR_RETURN(const ByteCount count, BytesOf("spec", layout, matrices));
  return TensorSpec{layout, matrices, std::move(scale), count.full};
}

absl::Status WithName(const absl::Status& status, const Tensor& tensor) {
  if (!absl::IsFailedPrecondition(status)) return status;
  const std::string name = tensor.name.empty() ? "a tensor without a name" : Shown(tensor.name);
  return absl::FailedPreconditionError(
      Concat("tensor lost: got ", name, ", handle ", tensor.handle.ToHex(),
             ", which was on a device that is gone, want one that is uploaded or computed anew"));
}

TensorBytes::TensorBytes(HostMemory host, Account& account, Account::Charge charge)
    : PlacedBytes(std::move(host)),
      account_(account.shared_from_this()),
      charge_(std::move(charge)) {}

TensorBytes::~TensorBytes() = default;

int64_t TensorBytes::charged_bytes() const {
  MutexLock lock(&room_mutex_);
  return charge_.bytes();
}

absl::Status TensorBytes::TakeRoom() {
  MutexLock lock(&room_mutex_);
  if (charge_.bytes() == bytes()) return absl::OkStatus();
  ASSIGN_OR_RETURN(charge_, account_->Take(bytes()));
  return absl::OkStatus();
}

void TensorBytes::GiveRoomBack() {
  Account::Charge charge;
  MutexLock lock(&room_mutex_);
  charge = std::move(charge_);
}

int64_t TensorBytes::form_bytes() {
  int64_t bytes = 0;
  MutexLock lock(&forms_mutex);
  for (const std::shared_ptr<KeptForm>& form : forms) bytes += form->bytes();
  return bytes;
}

void TensorBytes::DropForms() {
  std::vector<std::shared_ptr<KeptForm>> dropped;
  MutexLock lock(&forms_mutex);
  dropped.swap(forms);
}

absl::StatusOr<std::shared_ptr<TensorBytes>> TensorBytes::Allocate(
    int64_t bytes, Account& account, const std::shared_ptr<Background>& background,
    int64_t freed_at_once_bytes) {
  ASSIGN_OR_RETURN(Account::Charge charge, account.Take(bytes));
  ASSIGN_OR_RETURN(HostMemory host, HostMemory::Allocate(bytes));
  const auto give_back = [background, freed_at_once_bytes](TensorBytes* tensor) {
    std::unique_ptr<TensorBytes> owned(tensor);
    if (owned->bytes() <= freed_at_once_bytes) return;
    // The room is free at once for whoever comes next: the system takes memory back many times
    // faster than anybody can fill it.
    owned->GiveRoomBack();
    background->Post([owned = std::move(owned)]() mutable { owned.reset(); });
  };
  return std::shared_ptr<TensorBytes>(new TensorBytes(std::move(host), account, std::move(charge)),
                                      give_back);
}

}  // namespace gemmd
