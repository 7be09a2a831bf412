// SPDX-License-Identifier: Apache-2.0
//
// The download of one tensor, or of a range of it, over several connections: each takes the next
// piece, and what a broken one left is asked for again.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/client_session.h"
#include "client/transfer.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {

struct DownloadPlan {
  v1::TensorRef tensor;  // By its handle, where the range takes more than one piece.
  int64_t offset = 0;
  int64_t bytes = 0;
  bool is_rest = false;  // The range must end where the tensor ends.
  TensorSink sink;
  int connections = 0;  // As the caller asked.
  TransferTerms terms;
};

// Blocks until all bytes were taken. Errors: the server's own; InvalidArgument where the tensor is
// of another size; DataLoss for an answer with other bytes than those that were asked for; the
// sink's; Unavailable once kMostFruitlessTries have brought nothing; DeadlineExceeded.
absl::StatusOr<v1::TensorInfo> RunDownload(ClientSession& session, DownloadPlan plan);

}  // namespace gemmd
