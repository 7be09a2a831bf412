// SPDX-License-Identifier: Apache-2.0
//
// The upload of one tensor: gone on with by its id after connections broke.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "client/client_session.h"
#include "client/transfer.h"
#include "client/upload_round.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {

struct UploadPlan {
  v1::PutBegin begin;
  UploadSource source;
  int connections = 0;  // As the caller asked.
  TransferTerms terms;
};

// Blocks until the tensor is complete. Errors: the server's own; Unavailable once
// kMostFruitlessTries have brought nothing; DeadlineExceeded.
absl::StatusOr<v1::TensorInfo> RunUpload(ClientSession& session, UploadPlan plan);

}  // namespace gemmd
