// SPDX-License-Identifier: Apache-2.0
//
// The worker's own loop, in a thread, with the test as the daemon.
#pragma once

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "kernels/kernel.h"
#include "server/crossing/channel.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/worker/worker.h"
#include "tests/server/worker/fake_gpu_runtime.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FileDescriptor other;
    front_ = Channel::Create(other).value();
    worker_ = Channel::Open(std::move(other), front_.rings()).value();
    staging_ = Staging::Create(staging_bytes()).value();
    thread_ = std::thread([this] {
      end_ = RunWorker({.ordinal = 0, .memory_limit_bytes = 0, .measure = MeasureNothing},
                       runtime(), worker_, staging_.descriptor());
    });
    EXPECT_THAT(Receive<Hello>(), IsOk());
  }
  void TearDown() override {
    if (thread_.joinable()) End().IgnoreError();
  }

  virtual GpuRuntime& runtime() { return fake_; }
  virtual int64_t staging_bytes() const { return 4096; }

  // The status with which the worker ended.
  absl::Status End() {
    front_.Close();
    thread_.join();
    return end_;
  }

  template <typename Record>
  absl::StatusOr<Record> Receive() {
    Packet packet;
    const absl::Status status = front_.Receive(packet);
    return status.ok() ? ParseRecord<Record>(packet) : absl::StatusOr<Record>(status);
  }

  // The status of a job of so many rows.
  absl::Status StatusOfJob(JobRequest request) {
    request.id = 1;
    request.staged_d = LayOutJob(request.problem).value().input_bytes;
    EXPECT_THAT(SendRecord(front_, request), IsOk());
    const absl::StatusOr<Result> result = Receive<Result>();
    return result.ok() ? result->status.get() : result.status();
  }

  static JobRequest JobOfRows(int64_t m) {
    JobRequest request;
    Problem& problem = request.problem;
    problem.m = m;
    problem.n = problem.k = 1;
    problem.a = TightLayout("a", ElementType::kF16, Order::kRowMajor, m, 1).value();
    problem.b = TightLayout("b", ElementType::kF16, Order::kRowMajor, 1, 1).value();
    problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, m, 1).value();
    const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
    while (!kernels[request.kernel].supports(problem).ok()) ++request.kernel;
    return request;
  }

  FakeGpuRuntime fake_;
  Channel front_;
  Channel worker_;
  Staging staging_;
  absl::Status end_;
  std::thread thread_;
};

}  // namespace gemmd
