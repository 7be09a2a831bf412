// SPDX-License-Identifier: Apache-2.0
//
// Work that many events on one thread cause, and that is done once for all of them: several
// products of a stream that end together are one message to send.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace gemmd {

// Done at the end of a Deferral.
class Deferred {
 public:
  virtual ~Deferred() = default;
  virtual void RunDeferred() = 0;
};

// Until its end, what this thread puts off waits. One within another changes nothing. Whatever
// lasts long, or waits for others, has no place in it.
class Deferral {
 public:
  Deferral();
  ~Deferral();
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

  // Has the thread's deferral run it, once, however often it is put off. False where there is no
  // deferral, or it has as many others as it may: the caller then does the work itself.
  static bool PutOff(std::shared_ptr<Deferred> work);

 private:
  std::array<std::shared_ptr<Deferred>, 8> waiting_;
  size_t count_ = 0;
  bool is_outermost_ = false;
};

}  // namespace gemmd
