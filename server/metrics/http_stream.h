// SPDX-License-Identifier: Apache-2.0
//
// The bytes of one connection of the HTTP listener, as they are or within TLS. Nothing here waits.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/types/span.h"

namespace gemmd {

class HttpStream {
 public:
  enum class Progress {
    kMoved,    // Some bytes, or what was to be said.
    kWaits,    // For the socket, as awaited() says.
    kRefused,  // The peer breaks the rules and was told so, where there is a way to.
    kOver,     // The peer has gone.
  };
  struct Result {
    Progress progress;
    size_t bytes = 0;  // With kMoved.
  };

  HttpStream() = default;
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;
  virtual ~HttpStream() = default;

  virtual Result Receive(absl::Span<char> bytes) = 0;
  virtual Result Send(std::string_view bytes) = 0;
  // Tells the peer that nothing follows, for which kMoved stands.
  virtual Progress End() = 0;

  // The events of poll after which the next try may get further.
  virtual short awaited() const = 0;
};

// Makes the stream of a socket, which is borrowed. May give null: the connection is then closed.
using HttpStreamMaker = std::function<std::unique_ptr<HttpStream>(int socket)>;

std::unique_ptr<HttpStream> MakePlainStream(int socket);

}  // namespace gemmd
