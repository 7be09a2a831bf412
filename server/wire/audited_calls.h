// SPDX-License-Identifier: Apache-2.0
//
// What the audit log has of calls that are no products: who called what, and how it ended. Products
// have lines of their own (server/scheduling/product_log.h), as have calls that the gate refuses,
// which get no further.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/wire/gate.h"

namespace gemmd {

// Has each call that needs a role, but for products and the daemon's calls to itself, told to the
// audit log once it has ended. Does nothing where there is no audit log. Borrows the gate.
void AuditCalls(const Gate& gate, grpc::ServerBuilder& builder);

}  // namespace gemmd
