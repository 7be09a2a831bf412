// SPDX-License-Identifier: Apache-2.0
//
// A device for tests of tensors, whose simple products run when the test says so.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "kernels/cpu/host.h"
#include "server/device/device.h"
#include "server/system/mutex.h"
#include "tests/server/device/fake_device_memory.h"

namespace gemmd {

// Adds one to each byte of A, or of C if there is one, when it is told to.
class AddingDevice final : public Device {
 public:
  AddingDevice(std::string name, FakeDeviceMemory* memory) : memory_(memory) {
    info_.name = std::move(name);
    profile_.target = HostTarget();
  }
  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  DeviceMemory* memory() override { return memory_; }
  void Submit(const Job& job, Done done) override {
    MutexLock lock(&mutex_);
    waiting_.push_back({job, std::move(done)});
  }

  Job Next() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !waiting_.empty(); },
        absl::Seconds(60)));
    return waiting_.front().first;
  }
  bool has_job() {
    MutexLock lock(&mutex_);
    return !waiting_.empty();
  }
  // Runs the next job, or ends it with the status.
  void Run(const absl::Status& status = absl::OkStatus()) {
    const Job job = Next();
    if (status.ok()) Add(job);
    Done done;
    {
      MutexLock lock(&mutex_);
      done = std::move(waiting_.front().second);
      waiting_.pop_front();
    }
    JobOutcome outcome;
    outcome.status = status;
    std::move(done)(std::move(outcome));
  }

 private:
  void Add(const Job& job) {
    const Source& source = job.c.bytes > 0 ? job.c : job.a;
    std::string bytes;
    if (source.block != 0) {
      bytes.assign(
          reinterpret_cast<const char*>(memory_->memory(source.block, source.offset, source.bytes)),
          static_cast<size_t>(source.bytes));
    }
    for (const Piece& piece : source.pieces) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    for (char& byte : bytes) ++byte;
    std::byte* const to =
        job.d.block == 0 ? job.d.memory : memory_->memory(job.d.block, job.d.offset, source.bytes);
    std::memcpy(to, bytes.data(), bytes.size());
  }

  FakeDeviceMemory* const memory_;
  DeviceInfo info_;
  DeviceProfile profile_;
  Mutex mutex_;
  std::deque<std::pair<Job, Done>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
