// SPDX-License-Identifier: Apache-2.0
//
// Where the operands of a product are when a call is made: in the call, or on the server.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/mix.h"
#include "client/load/payload.h"
#include "gemmd/client.h"

namespace gemmd {

struct OperandPlace {
  absl::string_view name;
  absl::string_view what;
  bool keeps_b;   // On the server: uploaded once, ahead of the load.
  bool keeps_ad;  // A too, and D stays in tensors that the calls of the product overwrite in turn.
};
const std::vector<OperandPlace>& OperandPlaces();

// Null for an unknown name.
const OperandPlace* FindOperandPlace(absl::string_view name);

// Uploads what the place keeps in the client's session, and adds the request that names it; clients
// come in the order of `placed`. `reader` is another client of the same server: it joins the
// session to bring results that are checked; not null where the place keeps D. Errors: those of the
// server.
absl::Status PlaceOperands(const OperandPlace& place, const LoadProduct& product, Client& client,
                           const std::shared_ptr<Client>& reader, Payload& payload);

}  // namespace gemmd
