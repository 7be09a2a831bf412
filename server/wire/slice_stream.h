// SPDX-License-Identifier: Apache-2.0
//
// The slices of a message as protobuf reads them.
#pragma once

#include <google/protobuf/io/zero_copy_stream.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "server/wire/received_slices.h"

namespace gemmd {

// Reads slices in their order; where asked to, frees them, some at a time, once the reader has come
// past them.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  enum class After { kKeep, kFree };
  SliceStream(ReceivedSlices& slices, After after) : slices_(slices), after_(after) {}

  bool Next(const void** data, int* size) override {
    if (unread_ == 0) {
      const bool is_end = next_ == slices_.size();
      if (after_ == After::kFree && (is_end || next_ - freed_ >= kFreedTogether)) {
        slices_.LetGo(freed_, next_ - freed_);
        freed_ = next_;
      }
      if (is_end) return false;
      unread_ = slices_[next_++].size();
    }
    const grpc::Slice& slice = slices_[next_ - 1];
    *data = slice.end() - unread_;
    *size = static_cast<int>(unread_);
    position_ += *size;
    unread_ = 0;
    return true;
  }
  void BackUp(int count) override {
    unread_ = static_cast<size_t>(count);
    position_ -= count;
  }
  bool Skip(int count) override {
    const void* data = nullptr;
    int size = 0;
    while (count > 0 && Next(&data, &size)) {
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return count == 0;
  }
  int64_t ByteCount() const override { return position_; }

 private:
  static constexpr size_t kFreedTogether = 64;

  ReceivedSlices& slices_;
  const After after_;
  size_t freed_ = 0;   // The slice after those that are freed.
  size_t next_ = 0;    // The slice after the one that is read.
  size_t unread_ = 0;  // The last bytes of the slice that is read.
  int64_t position_ = 0;
};

}  // namespace gemmd
