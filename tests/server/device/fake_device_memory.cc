// SPDX-License-Identifier: Apache-2.0
#include "tests/server/device/fake_device_memory.h"

#include <cstring>
#include <new>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {

FakeDeviceMemory::FakeDeviceMemory(int64_t capacity_bytes)
    : capacity_bytes_(capacity_bytes), thread_([this] { Serve(); }) {}

FakeDeviceMemory::~FakeDeviceMemory() {
  {
    MutexLock lock(&mutex_);
    is_held_ = false;
    is_stopping_ = true;
  }
  thread_.join();
}

int64_t FakeDeviceMemory::used_bytes() const {
  MutexLock lock(&mutex_);
  return used_bytes_;
}

uint64_t FakeDeviceMemory::generation() const {
  MutexLock lock(&mutex_);
  return generation_;
}

void FakeDeviceMemory::Add(Call call) {
  MutexLock lock(&mutex_);
  if (std::exchange(throws_, false)) throw std::bad_alloc();
  ++counts_[call.function];
  if (call.function == held_from_) {
    held_from_.clear();
    is_held_ = true;
  }
  calls_.push_back(std::move(call));
}

void FakeDeviceMemory::Allocate(int64_t bytes, AllocateDone done) {
  Call call;
  call.function = "Allocate";
  call.bytes = bytes;
  call.allocated = std::move(done);
  MutexLock lock(&mutex_);
  if (std::exchange(throws_, false)) throw std::bad_alloc();
  ++counts_[call.function];
  // Whether there is room is decided at once, since the bytes are counted at once.
  const bool fits = bytes > 0 && bytes <= capacity_bytes_ &&
                    BlockBytes(bytes) <= capacity_bytes_ - used_bytes_ && is_ready_;
  if (fits) used_bytes_ += BlockBytes(bytes);
  if (fits) call.block = ++last_block_;
  calls_.push_back(std::move(call));
}

void FakeDeviceMemory::Free(DeviceBlock block) {
  Call call;
  call.function = "Free";
  call.block = block;
  MutexLock lock(&mutex_);
  ++counts_[call.function];
  const auto found = blocks_.find(block);
  if (found == blocks_.end() || !freed_.insert(block).second) return;
  used_bytes_ -= BlockBytes(static_cast<int64_t>(found->second.size()));
  calls_.push_back(std::move(call));
}

void FakeDeviceMemory::Write(DeviceBlock block, int64_t offset,
                             std::vector<absl::Span<const std::byte>> pieces, Done done) {
  Call call;
  call.function = "Write";
  call.block = block;
  call.offset = offset;
  for (const absl::Span<const std::byte>& piece : pieces) {
    call.bytes += static_cast<int64_t>(piece.size());
  }
  call.pieces = std::move(pieces);
  call.done = std::move(done);
  Add(std::move(call));
}

void FakeDeviceMemory::Read(DeviceBlock block, int64_t offset, absl::Span<std::byte> to,
                            Done done) {
  Call call;
  call.function = "Read";
  call.block = block;
  call.offset = offset;
  call.bytes = static_cast<int64_t>(to.size());
  call.to = to;
  call.done = std::move(done);
  Add(std::move(call));
}

void FakeDeviceMemory::Compress(const CompressTask& task, CompressDone done) {
  Call call;
  call.function = "Compress";
  call.task = task;
  call.compressed = std::move(done);
  Add(std::move(call));
}

void FakeDeviceMemory::Recompute(Recomputation, RecomputeDone done) {
  Call call;
  call.function = "Recompute";
  call.done = [done = std::move(done)](const absl::Status&) mutable {
    std::move(done)(absl::UnimplementedError("fake memory has no kernels"));
  };
  Add(std::move(call));
}

absl::StatusOr<BadGroup> FakeDeviceMemory::DoCompress(const CompressTask& task) {
  ASSIGN_OR_RETURN(const CompressBytes bytes, BytesOf(task));
  RETURN_IF_ERROR(Check(task.dense_block, 0, bytes.dense));
  RETURN_IF_ERROR(Check(task.result_block, 0, bytes.result));
  if (task.mask_block != 0) RETURN_IF_ERROR(Check(task.mask_block, 0, bytes.mask));
  const std::byte* const mask = task.mask_block == 0 ? nullptr : blocks_[task.mask_block].data();
  return CompressLines(
      ViewOf(task, blocks_[task.dense_block].data(), mask, blocks_[task.result_block].data()));
}

absl::Status FakeDeviceMemory::Check(DeviceBlock block, int64_t offset, int64_t bytes) const {
  if (block <= last_lost_ && block != 0) {
    return absl::FailedPreconditionError("tensor lost: the fake worker was replaced");
  }
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return absl::InvalidArgumentError(Concat("block: no ", block));
  const auto size = static_cast<int64_t>(found->second.size());
  if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset) {
    return absl::InvalidArgumentError(
        GotWant("range", Concat(bytes, " bytes from ", offset, " on"), Concat("within ", size)));
  }
  return absl::OkStatus();
}

absl::Status FakeDeviceMemory::Do(const Call& call) {
  if (const auto failure = failures_.find(call.function); failure != failures_.end()) {
    const absl::Status status = failure->second;
    failures_.erase(failure);
    if (call.function == "Allocate" && call.block > last_lost_) {
      used_bytes_ -= BlockBytes(call.bytes);
    }
    return status;
  }
  if (call.function == "Allocate") {
    if (call.block == 0 && !is_ready_)
      return absl::UnavailableError("the fake device is not ready");
    if (call.block == 0 && call.bytes <= 0) {
      return absl::InvalidArgumentError(GotWant("bytes", Concat(call.bytes), "1 or more"));
    }
    if (call.block == 0) return absl::ResourceExhaustedError("the fake device's memory is full");
    if (call.block <= last_lost_) return absl::UnavailableError("the fake worker was replaced");
    blocks_[call.block].resize(static_cast<size_t>(call.bytes));
    return absl::OkStatus();
  }
  if (call.compressed) return absl::OkStatus();
  RETURN_IF_ERROR(Check(call.block, call.offset, call.bytes));
  std::vector<std::byte>& block = blocks_[call.block];
  std::byte* at = block.data() + call.offset;
  if (call.function == "Free") {
    blocks_.erase(call.block);
  } else if (call.function == "Write") {
    for (const absl::Span<const std::byte>& piece : call.pieces) {
      if (!piece.empty()) std::memcpy(at, piece.data(), piece.size());
      at += piece.size();
    }
  } else if (!call.to.empty()) {
    std::memcpy(call.to.data(), at, call.to.size());
  }
  return absl::OkStatus();
}

void FakeDeviceMemory::Serve() {
  while (true) {
    Call call;
    absl::Status status;
    absl::StatusOr<BadGroup> bad = kNoBadGroup;
    {
      MutexLock lock(&mutex_);
      mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !is_held_ && (is_stopping_ || !calls_.empty());
      });
      if (calls_.empty()) return;
      call = std::move(calls_.front());
      calls_.pop_front();
      status = Do(call);
      if (call.compressed && !status.ok()) bad = status;
      if (call.compressed && status.ok()) bad = DoCompress(call.task);
    }
    if (call.allocated) {
      std::move(call.allocated)(status.ok() ? absl::StatusOr<DeviceBlock>(call.block) : status);
    }
    if (call.done) std::move(call.done)(status);
    if (call.compressed) std::move(call.compressed)(std::move(bad));
  }
}

void FakeDeviceMemory::Hold(bool hold) {
  MutexLock lock(&mutex_);
  is_held_ = hold;
}

void FakeDeviceMemory::HoldFrom(const std::string& function) {
  MutexLock lock(&mutex_);
  held_from_ = function;
}

int FakeDeviceMemory::held() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(calls_.size());
}

int FakeDeviceMemory::calls(const std::string& function) const {
  MutexLock lock(&mutex_);
  const auto found = counts_.find(function);
  return found == counts_.end() ? 0 : found->second;
}

void FakeDeviceMemory::FailNext(const std::string& function, const absl::Status& status) {
  MutexLock lock(&mutex_);
  failures_[function] = status;
}

void FakeDeviceMemory::ThrowNext() {
  MutexLock lock(&mutex_);
  throws_ = true;
}

void FakeDeviceMemory::Lose(bool is_ready_again) {
  MutexLock lock(&mutex_);
  blocks_.clear();
  freed_.clear();
  used_bytes_ = 0;
  last_lost_ = last_block_;
  is_ready_ = is_ready_again;
  ++generation_;
}

void FakeDeviceMemory::SetReady() {
  MutexLock lock(&mutex_);
  is_ready_ = true;
}

std::string FakeDeviceMemory::bytes(DeviceBlock block) const {
  MutexLock lock(&mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return "";
  return {reinterpret_cast<const char*>(found->second.data()), found->second.size()};
}

std::byte* FakeDeviceMemory::memory(DeviceBlock block, int64_t offset, int64_t bytes) {
  MutexLock lock(&mutex_);
  return Check(block, offset, bytes).ok() ? blocks_[block].data() + offset : nullptr;
}

size_t FakeDeviceMemory::blocks() const {
  MutexLock lock(&mutex_);
  return blocks_.size();
}

}  // namespace gemmd
