// SPDX-License-Identifier: Apache-2.0
//
// A TCP peer that speaks as much HTTP/2 as a test needs. Loopback only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace gemmd {

class Http2Peer {
 public:
  // Frame types and flags of RFC 9113.
  static constexpr int kData = 0;
  static constexpr int kHeaders = 1;
  static constexpr int kSettings = 4;
  static constexpr int kPing = 6;
  static constexpr int kGoAway = 7;
  static constexpr int kWindowUpdate = 8;
  static constexpr int kAck = 1;
  static constexpr int kEndStream = 1;
  static constexpr int kEndHeaders = 4;

  struct Frame {
    int type = 0;
    int flags = 0;
    std::string payload;
  };

  explicit Http2Peer(int port);
  ~Http2Peer();
  Http2Peer(const Http2Peer&) = delete;
  Http2Peer& operator=(const Http2Peer&) = delete;

  void Send(const std::string& bytes);
  void SendFrame(int type, int flags, const std::string& payload, uint32_t stream = 0);

  // The client's preface, its empty settings and its acknowledgement of the server's.
  void Greet();

  // The next frame; nullopt if the connection was closed or `timeout` passed.
  std::optional<Frame> ReadFrame(absl::Duration timeout);

  // Reads and drops data. Returns whether the connection was closed within `timeout`.
  bool WaitUntilClosed(absl::Duration timeout);

 private:
  // Reads once into the buffer. Returns false if the connection is closed or the time is up.
  bool Fill(absl::Time limit);

  int socket_ = -1;
  bool closed_ = false;
  std::string buffer_;
};

}  // namespace gemmd
