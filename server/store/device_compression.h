// SPDX-License-Identifier: Apache-2.0
//
// A compression on the device that has the tensor: step by step, so that it can end between them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/store/compression.h"
#include "server/store/device_copies.h"

namespace gemmd {

class DeviceCompression : public std::enable_shared_from_this<DeviceCompression> {
 public:
  // What a step usually reads, at least a line: a GPU takes some 0.1 ms for it.
  static constexpr int64_t kStepBytes = int64_t{16} << 20;

  struct Tensors {
    std::shared_ptr<PlacedBytes> dense;
    std::shared_ptr<PlacedBytes> mask;    // Null: the units of the largest magnitude are kept.
    std::shared_ptr<PlacedBytes> result;  // Nobody else has it.
  };
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;

  // `goes_on` is asked before each step; where it is not OK, that is how it ends. `done` is called
  // once, from any thread, when the device has the result, or with why it has not: InvalidArgument
  // for what the mask says, ResourceExhausted where the device has no room, and those of
  // DeviceMemory. The result's bytes are then undefined everywhere.
  DeviceCompression(std::shared_ptr<DeviceCopies> place, const CompressionPlan& plan,
                    Tensors tensors, int64_t step_bytes, std::function<absl::Status()> goes_on,
                    Done done);

  // Goes on by itself; whoever it waits for keeps it.
  void Start();

 private:
  // Goes on with `next` once the device has the bytes.
  void Bring(const std::shared_ptr<PlacedBytes>& bytes, uint64_t& block, DeviceCopies::Use& use,
             void (*next)(DeviceCompression& self));
  void BringMask();
  void BringResult();
  void Step();
  void EndStep(const absl::StatusOr<BadGroup>& bad);
  void End(const absl::Status& status);

  const std::shared_ptr<DeviceCopies> place_;
  const CompressionPlan plan_;
  const Tensors tensors_;
  const int64_t step_bytes_;
  const std::function<absl::Status()> goes_on_;
  Done done_;

  // One step after the other uses what follows.
  CompressTask task_;
  DeviceCopies::Use dense_;
  DeviceCopies::Use mask_;
  DeviceCopies::Use result_;
  bool has_taken_ = false;  // The right to write the result,
  bool has_begun_ = false;  // and has begun to.
};

}  // namespace gemmd
