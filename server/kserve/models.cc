// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/models.h"

#include <utility>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

absl::Status NoSuchModel() {
  return absl::NotFoundError(
      "model: got a name or version that there is not, want \"gemm\" or the name of a resident "
      "tensor of the session in the metadata gemmd-session, version 1");
}

}  // namespace

absl::Status CheckServes(const Model& model) {
  if (model.b == nullptr || !model.b->spec.layout.is_sparse()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      GotWant("model", "a sparse tensor", "a dense one, since only A may be sparse"));
}

absl::StatusOr<TensorStore::SessionUse> Models::SessionOf(const ModelUser& user) const {
  const Identity* const caller = user.caller.get();
  if (caller != nullptr && !caller->grant.roles.Has(Role::kTensors)) return NoSuchModel();
  absl::StatusOr<TensorStore::SessionUse> session =
      store_.Use(user.session, caller == nullptr ? "" : caller->name);
  return session.ok() ? std::move(session) : NoSuchModel();
}

absl::StatusOr<Model> Models::Find(const ModelUser& user, std::string_view name,
                                   std::string_view version) const {
  RETURN_IF_ERROR(CheckNameLength("model_name", name));
  if (!version.empty() && version != kModelVersion) return NoSuchModel();
  if (name == kGemmModel) return Model{std::string(name), nullptr};
  if (name.empty()) return NoSuchModel();
  ASSIGN_OR_RETURN(const TensorStore::SessionUse session, SessionOf(user));
  absl::StatusOr<TensorState> state = store_.Describe(session, TensorName(std::string(name)));
  if (!state.ok()) return NoSuchModel();
  Model model = {std::string(name), std::move(state->tensor)};
  RETURN_IF_ERROR(CheckServes(model));
  return model;
}

std::vector<Model> Models::List(const ModelUser& user) const {
  std::vector<Model> models = {{std::string(kGemmModel), nullptr}};
  const absl::StatusOr<TensorStore::SessionUse> session = SessionOf(user);
  if (!session.ok()) return models;
  for (TensorState& state : store_.List(*session)) {
    const std::string& name = state.tensor->name;
    if (name.empty() || name == kGemmModel || name == models.back().name) continue;
    models.push_back({name, std::move(state.tensor)});
  }
  return models;
}

}  // namespace gemmd
