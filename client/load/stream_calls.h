// SPDX-License-Identifier: Apache-2.0
//
// Calls of a load that go over streams instead of one by one: MultiplyStream puts those that wait
// to be sent at the same time into one message.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// A number of streams to each of several servers, each with a thread that receives. A stream that
// the server has ended is opened again.
class StreamCalls {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<v1::MultiplyResponse>) &&>;

  // Borrows the clients.
  StreamCalls(std::vector<Client>& clients, int streams_of_client);
  // Waits for the end of all calls. Nothing is sent meanwhile.
  ~StreamCalls();
  StreamCalls(const StreamCalls&) = delete;
  StreamCalls& operator=(const StreamCalls&) = delete;

  // Sends a product over one of the streams of a client, which take turns. `done` is called exactly
  // once, on the thread of a stream, and may send further products. Blocks while the connection
  // takes no more.
  void Send(size_t client, const v1::MultiplyRequest& request, Done done);

  // Ends all calls under way with Cancelled. Nothing is sent afterwards.
  void Cancel();

 private:
  class Stream;

  const size_t streams_of_client_;
  std::vector<std::unique_ptr<Stream>> streams_;  // Those of the first client come first.
  std::atomic<uint64_t> next_ = 0;
};

}  // namespace gemmd
