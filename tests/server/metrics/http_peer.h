// SPDX-License-Identifier: Apache-2.0
//
// A client of a listener in tests, and the pages that the listener serves.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/metrics/http.h"
#include "server/system/files.h"

namespace gemmd {

inline constexpr size_t kLargePageBytes = size_t{32} << 20;  // More than the buffers of two
                                                             // sockets.

// "/small" is "body\n", "/large" has kLargePageBytes; there are no others.
std::optional<Page> PageAt(std::string_view path);

// A TCP connection to "127.0.0.1:PORT", or to such an address behind a prefix. Receiving ends with
// EAGAIN after a minute.
class HttpPeerSocket {
 public:
  // `from` is the address of this end.
  explicit HttpPeerSocket(const std::string& address, const char* from = "127.0.0.1");

  // False if nobody listens.
  bool is_connected() const { return is_connected_; }
  int get() const { return socket_.get(); }
  // Whether the other side accepts all of the text.
  bool Say(const std::string& text) const;
  // Whether the other side still waits for something.
  bool IsOpen() const;

 private:
  FileDescriptor socket_;
  bool is_connected_ = false;
};

}  // namespace gemmd
