// SPDX-License-Identifier: Apache-2.0
#include "server/wire/joint_request.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <utility>

#include "gemmd/v1/gemm.pb.h"
#include "kernels/or_no_memory.h"
#include "kernels/text.h"
#include "proto/field_start.h"
#include "server/wire/slice_stream.h"

namespace gemmd {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

const uint32_t kProductTag = DelimitedTag(v1::MultiplyStreamRequest::kRequestsFieldNumber);

}  // namespace

JointRequest::JointRequest(grpc::ByteBuffer& buffer)
    : wire_bytes_(static_cast<int64_t>(buffer.Length())), slices_(TakeSlices(buffer)) {}

absl::Status JointRequest::Cut() {
  if (slices_.empty() && wire_bytes_ > 0) return NoMemory(wire_bytes_);
  SliceStream stream(slices_, SliceStream::After::kKeep);
  CodedInputStream input(&stream);
  (void)input.PushLimit(static_cast<int>(wire_bytes_));
  int64_t product_bytes = 0;
  while (const uint32_t tag = NextTag(input)) {
    uint32_t bytes = 0;
    if (tag != kProductTag) {
      if (!WireFormatLite::SkipField(&input, tag)) return MalformedMessage();
      const int64_t unknown_bytes = input.CurrentPosition() - product_bytes;
      if (unknown_bytes <= kMaxUnknownBytes) continue;
      return absl::InvalidArgumentError(Concat("message: got at least ", unknown_bytes,
                                               " bytes of unknown fields, want at most ",
                                               kMaxUnknownBytes));
    }
    if (!input.ReadVarint32(&bytes)) return MalformedMessage();
    const int64_t begin = input.CurrentPosition();
    if (bytes > wire_bytes_ - begin || !input.Skip(static_cast<int>(bytes))) {
      return MalformedMessage();
    }
    if (products_.size() == kMostJointRequests) {
      return absl::InvalidArgumentError(
          GotWant("requests", "more", Concat("at most ", kMostJointRequests, " in one message")));
    }
    products_.push_back({begin, begin + bytes});
    product_bytes += static_cast<int64_t>(EncodedFieldBytes(1, bytes));
  }
  // NextTag gives 0 at the end, and for what cannot be a tag.
  if (!input.ConsumedEntireMessage()) return MalformedMessage();
  if (products_.size() > 1 && wire_bytes_ > kMostJointBytes) {
    return absl::InvalidArgumentError(Concat("requests: got ", products_.size(), " in ",
                                             wire_bytes_, " bytes, want one alone, or at most ",
                                             kMostJointBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Incoming> JointRequest::Take() {
  const WireRange range = products_[taken_++];
  return OrNoMemory("message: no memory for its parts, try again later",
                    [&]() -> absl::StatusOr<Incoming> { return Incoming(SlicesOf(range)); });
}

ReceivedSlices JointRequest::SlicesOf(WireRange range) {
  slices_.LetGo(freed_, slice_ - freed_);
  freed_ = slice_;
  // Several are short, and stay here until they are parsed. One alone may be long, and is freed as
  // it is parsed.
  const bool is_alone = products_.size() == 1;
  ReceivedSlices slices = is_alone ? ReceivedSlices() : ReceivedSlices::OfKept();
  while (slice_ < slices_.size()) {
    const grpc::Slice& slice = slices_[slice_];
    const int64_t slice_end = slice_begin_ + static_cast<int64_t>(slice.size());
    const int64_t first = std::max(range.begin, slice_begin_);
    const int64_t last = std::min(range.end, slice_end);
    if (first < last) {
      slices.push_back(slice.sub(static_cast<size_t>(first - slice_begin_),
                                 static_cast<size_t>(last - slice_begin_)));
    }
    if (slice_end >= range.end) break;  // The next product may begin in it.
    ++slice_;
    slice_begin_ = slice_end;
  }
  if (is_alone) slices_.LetGo(0, slices_.size());
  return slices;
}

}  // namespace gemmd
