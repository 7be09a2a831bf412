// SPDX-License-Identifier: Apache-2.0
//
// The slices that a message was received in.
//
// Their memory is in gRPC's quota, and where that is short, gRPC has something to run as soon as
// some is free again. gRPC 1.51 runs it on the thread that frees a slice, and the process ends
// there unless the thread is within a call of gRPC's: grpc_slice_unref is none. The end of a byte
// buffer is one, so slices are freed by that.
//
// To free 256 MiB takes 20 ms and more, most of it for pages that go back to the system. A handler
// that drops a long message must not hold its thread for that: what a list still has when it goes
// is freed on gRPC's other threads, a millisecond at a time.
#pragma once

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace gemmd {

// Short messages come in one, for which no list is allocated.
using SliceList = absl::InlinedVector<grpc::Slice, 1>;

// Threads: one at a time, whichever.
class ReceivedSlices : public SliceList {
 public:
  ReceivedSlices() = default;
  ReceivedSlices(std::vector<grpc::Slice> slices)
      : SliceList(std::make_move_iterator(slices.begin()), std::make_move_iterator(slices.end())) {}
  ReceivedSlices(const ReceivedSlices&) = default;
  ReceivedSlices(ReceivedSlices&&) noexcept = default;
  ReceivedSlices& operator=(ReceivedSlices other) noexcept {
    swap(other);
    std::swap(is_kept_elsewhere_, other.is_kept_elsewhere_);
    return *this;
  }
  ~ReceivedSlices() { Drop(); }

  // An empty list, for parts of slices that another list keeps for longer: nothing is freed with
  // them.
  static ReceivedSlices OfKept() {
    ReceivedSlices parts;
    parts.is_kept_elsewhere_ = true;
    return parts;
  }

  // Frees `count` slices from `first` on, which are empty then.
  void LetGo(size_t first, size_t count);
  // Those before `begin` are not in the list any more.
  void EraseBefore(size_t begin);
  void clear() { *this = ReceivedSlices(); }

 private:
  void Drop() noexcept;

  bool is_kept_elsewhere_ = false;
};

}  // namespace gemmd
