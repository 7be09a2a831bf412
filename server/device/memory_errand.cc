// SPDX-License-Identifier: Apache-2.0
#include "server/device/memory_errand.h"

#include <algorithm>
#include <utility>

namespace gemmd {
namespace {

// Each Write and Read has a number of its own: its block can be in two of them.
uint64_t GroupOf(const Transfer& transfer) { return reinterpret_cast<uintptr_t>(&transfer); }

// At 5 GB/s, as a slow link has.
int64_t PredictedNs(int64_t bytes) { return bytes / 5; }

}  // namespace

BlockErrand::BlockErrand(const MemoryRequest& request, Done done)
    : Errand(Kind::kMemory), request_(request), done_(std::move(done)) {
  if (request.action == MemoryAction::kFree) {
    uses.push_back({.block = request.block, .is_write = true});
  }
}

absl::Status BlockErrand::Send(int socket) const {
  MemoryRequest request = request_;
  request.id = id;
  request.slot = slot;
  return SendRecord(socket, request);
}

void BlockErrand::End(const absl::Status& status, const Times&) { std::move(done_)(status); }

void Transfer::EndOne(const absl::Status& status) {
  absl::Status end;
  {
    MutexLock lock(&mutex_);
    status_.Update(status);
    if (--left_ > 0) return;
    end = status_;
  }
  std::move(done_)(end);
}

CopyErrand::CopyErrand(const MemoryRequest& request, std::vector<Piece> pieces,
                       std::shared_ptr<Transfer> transfer)
    : Errand(Kind::kMemory),
      request_(request),
      pieces_(std::move(pieces)),
      transfer_(std::move(transfer)) {
  in_bytes = request.bytes;
  predicted_ns = PredictedNs(request.bytes);
  uses.push_back({.block = request.block, .is_write = true});
  group = GroupOf(*transfer_);
}

CopyErrand::CopyErrand(const MemoryRequest& request, absl::Span<std::byte> to,
                       std::shared_ptr<Transfer> transfer)
    : Errand(Kind::kMemory), request_(request), to_(to), transfer_(std::move(transfer)) {
  out_bytes = request.bytes;
  predicted_ns = PredictedNs(request.bytes);
  uses.push_back({.block = request.block});
  group = GroupOf(*transfer_);
}

std::vector<CopiedBytes> CopyErrand::CopiesIn() const {
  std::vector<CopiedBytes> copies;
  std::byte* to = in.bytes().data();
  for (const Piece& piece : pieces_) {
    copies.push_back({.to = to, .from = piece.data(), .bytes = piece.size()});
    to += piece.size();
  }
  return copies;
}

absl::Status CopyErrand::Send(int socket) const {
  MemoryRequest request = request_;
  request.id = id;
  request.slot = slot;
  request.staged = pieces_.empty() ? out.offset() : in.offset();
  return SendRecord(socket, request);
}

absl::Span<std::byte> CopyErrand::written() const { return out.bytes(); }

absl::Status CopyErrand::PlaceResult(std::vector<CopiedBytes>& copies) {
  if (!to_.empty())
    copies.push_back({.to = to_.data(), .from = out.bytes().data(), .bytes = to_.size()});
  return absl::OkStatus();
}

void CopyErrand::End(const absl::Status& status, const Times&) { transfer_->EndOne(status); }

std::vector<std::unique_ptr<Errand>> WriteErrands(DeviceBlock block, int64_t offset,
                                                  const std::vector<Piece>& pieces,
                                                  int64_t chunk_bytes, Transfer::Done done) {
  int64_t left = 0;
  for (const Piece& piece : pieces) left += static_cast<int64_t>(piece.size());
  auto transfer = std::make_shared<Transfer>((left - 1) / chunk_bytes + 1, std::move(done));
  std::vector<std::unique_ptr<Errand>> errands;
  size_t index = 0;
  size_t at = 0;  // In the piece.
  while (left > 0) {
    MemoryRequest request;
    request.action = MemoryAction::kWrite;
    request.block = block;
    request.offset = offset;
    request.bytes = std::min(left, chunk_bytes);
    std::vector<Piece> chunk;
    for (auto missing = static_cast<size_t>(request.bytes); missing > 0;) {
      const Piece part = pieces[index].subspan(at, missing);
      if (!part.empty()) chunk.push_back(part);
      missing -= part.size();
      at += part.size();
      if (at < pieces[index].size()) continue;
      ++index;
      at = 0;
    }
    offset += request.bytes;
    left -= request.bytes;
    errands.push_back(std::make_unique<CopyErrand>(request, std::move(chunk), transfer));
  }
  return errands;
}

std::vector<std::unique_ptr<Errand>> ReadErrands(DeviceBlock block, int64_t offset,
                                                 absl::Span<std::byte> to, int64_t chunk_bytes,
                                                 Transfer::Done done) {
  const auto all = static_cast<int64_t>(to.size());
  auto transfer = std::make_shared<Transfer>((all - 1) / chunk_bytes + 1, std::move(done));
  std::vector<std::unique_ptr<Errand>> errands;
  for (int64_t at = 0; at < all; at += chunk_bytes) {
    MemoryRequest request;
    request.action = MemoryAction::kRead;
    request.block = block;
    request.offset = offset + at;
    request.bytes = std::min(chunk_bytes, all - at);
    const absl::Span<std::byte> part =
        to.subspan(static_cast<size_t>(at), static_cast<size_t>(request.bytes));
    errands.push_back(std::make_unique<CopyErrand>(request, part, transfer));
  }
  return errands;
}

}  // namespace gemmd
