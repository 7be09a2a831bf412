// SPDX-License-Identifier: Apache-2.0
//
// The reactor of a call that is refused before anything of it is looked at, and that keeps nothing.
#pragma once

#include "absl/status/status.h"
#include "server/wire/grpc_status.h"

namespace gemmd {

// `Reactor` is the kind that the method has. It owns itself.
template <typename Reactor>
Reactor* RefuseCall(const absl::Status& status) {
  class Refused final : public Reactor {
   public:
    explicit Refused(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
    void OnDone() override { delete this; }
  };
  return new Refused(status);
}

}  // namespace gemmd
