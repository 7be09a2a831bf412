// SPDX-License-Identifier: Apache-2.0
//
// What is asked of a block as requests to a worker. What is copied goes in chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/errand.h"
#include "server/device/job.h"

namespace gemmd {

// A request with which nothing is copied: to take a block, or to give it back.
class BlockErrand final : public Errand {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;
  BlockErrand(const MemoryRequest& request, Done done);

  absl::Status Send(int socket) const override;
  void End(const absl::Status& status, const Times& times) override;

 private:
  const MemoryRequest request_;
  Done done_;
};

// The chunks of one Write or Read end together.
class Transfer {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;
  Transfer(int64_t chunks, Done done) : left_(chunks), done_(std::move(done)) {}

  // One of them has ended. Threads: any.
  void EndOne(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  int64_t left_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Done done_;
};

// A chunk of it.
class CopyErrand final : public Errand {
 public:
  // To the block.
  CopyErrand(const MemoryRequest& request, std::vector<Piece> pieces,
             std::shared_ptr<Transfer> transfer);
  // From it.
  CopyErrand(const MemoryRequest& request, absl::Span<std::byte> to,
             std::shared_ptr<Transfer> transfer);

  std::vector<CopiedBytes> CopiesIn() const override;
  absl::Status Send(int socket) const override;
  absl::Span<std::byte> written() const override;
  absl::Status PlaceResult(std::vector<CopiedBytes>& copies) override;
  void End(const absl::Status& status, const Times& times) override;

 private:
  MemoryRequest request_;
  std::vector<Piece> pieces_;
  absl::Span<std::byte> to_;
  std::shared_ptr<Transfer> transfer_;
};

// The errands of a Write or a Read of the range, in chunks of at most so many bytes.
std::vector<std::unique_ptr<Errand>> WriteErrands(DeviceBlock block, int64_t offset,
                                                  const std::vector<Piece>& pieces,
                                                  int64_t chunk_bytes, Transfer::Done done);
std::vector<std::unique_ptr<Errand>> ReadErrands(DeviceBlock block, int64_t offset,
                                                 absl::Span<std::byte> to, int64_t chunk_bytes,
                                                 Transfer::Done done);

}  // namespace gemmd
