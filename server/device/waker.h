// SPDX-License-Identifier: Apache-2.0
//
// Wakes a thread that sleeps in poll.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "server/system/file_descriptor.h"

namespace gemmd {

class Waker {
 public:
  Waker() : file_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  bool is_open() const { return file_.is_open(); }
  // Readable once it was woken.
  int descriptor() const { return file_.get(); }

  // Threads: any.
  void Wake() const {
    const uint64_t one = 1;
    // It fails only where the count is full, and then the thread is awake.
    [[maybe_unused]] const ssize_t written = write(file_.get(), &one, sizeof(one));
  }
  void Forget() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t size = read(file_.get(), &count, sizeof(count));
  }

 private:
  FileDescriptor file_;
};

}  // namespace gemmd
