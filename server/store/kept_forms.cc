// SPDX-License-Identifier: Apache-2.0
#include "server/store/kept_forms.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace gemmd {

KeptForms::Use KeptForms::Take(const std::shared_ptr<TensorBytes>& tensor, Account& account,
                               const FormKey& key) {
  {
    MutexLock lock(&tensor->forms_mutex);
    for (const std::shared_ptr<KeptForm>& form : tensor->forms) {
      if (!(form->key_ == key)) continue;
      if (!form->is_made_) return {};
      form->last_use_ = ++uses_;
      return {form, true};
    }
    auto& wanted = tensor->wanted_forms;
    if (std::find(wanted.begin(), wanted.end(), key) == wanted.end()) {
      if (wanted.size() == kMostOfTensor) wanted.erase(wanted.begin());
      wanted.push_back(key);
      return {};
    }
    if (tensor->forms.size() == kMostOfTensor) return {};
  }
  auto memory = TensorBytes::Allocate(key.bytes, account, background_, HostMemory::kMappedBytes);
  if (!memory.ok()) return {};
  auto form = std::make_shared<KeptForm>(key, tensor, &account, *std::move(memory));
  form->last_use_ = ++uses_;
  {
    MutexLock lock(&tensor->forms_mutex);
    tensor->forms.push_back(form);
  }
  MutexLock lock(&mutex_);
  const auto is_gone = [](const auto& other) { return other.expired(); };
  forms_.erase(std::remove_if(forms_.begin(), forms_.end(), is_gone), forms_.end());
  forms_.push_back(form);
  return {form, false};
}

void KeptForms::End(const std::shared_ptr<KeptForm>& form, bool is_made) {
  if (is_made) {
    form->is_made_ = true;
  } else {
    Drop(form);
  }
}

void KeptForms::Drop(const std::shared_ptr<KeptForm>& form) {
  const std::shared_ptr<TensorBytes> tensor = form->tensor_.lock();
  if (tensor == nullptr) return;
  MutexLock lock(&tensor->forms_mutex);
  auto& forms = tensor->forms;
  forms.erase(std::remove(forms.begin(), forms.end(), form), forms.end());
}

std::vector<std::shared_ptr<KeptForm>> KeptForms::All() const {
  std::vector<std::shared_ptr<KeptForm>> all;
  MutexLock lock(&mutex_);
  for (const auto& form : forms_) {
    if (auto valid = form.lock()) all.push_back(std::move(valid));
  }
  return all;
}

void KeptForms::MakeRoom(const Account& account, int64_t bytes) {
  if (account.free() >= bytes) return;
  struct Candidate {
    bool is_others;
    int64_t last_use;  // As it was: it changes while others use the form.
    std::shared_ptr<KeptForm> form;
  };
  std::vector<Candidate> candidates;
  for (std::shared_ptr<KeptForm>& form : All()) {
    const bool is_others = form->account_ != &account;
    const int64_t last_use = form->last_use_;
    candidates.push_back({is_others, last_use, std::move(form)});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.is_others, a.last_use) < std::tie(b.is_others, b.last_use);
  });
  for (Candidate& candidate : candidates) {
    Drop(candidate.form);
    candidate.form = nullptr;  // Its room is free now, unless a product still uses it.
    if (account.free() >= bytes) return;
  }
}

void KeptForms::DropAll() {
  for (const std::shared_ptr<KeptForm>& form : All()) Drop(form);
}

int64_t KeptForms::BytesOf(const Account& account) const {
  int64_t bytes = 0;
  for (const std::shared_ptr<KeptForm>& form : All()) {
    if (form->account_ == &account) bytes += form->bytes();
  }
  return bytes;
}

}  // namespace gemmd
