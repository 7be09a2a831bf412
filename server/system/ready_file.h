// SPDX-License-Identifier: Apache-2.0
//
// A file that is there while the daemon serves, and holds its addresses, one a line.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace gemmd {

// Whether gemmd could have written a file with that text: nothing, or addresses alone.
bool IsOfAddresses(const std::string& text);

// Not for use by several threads at once.
class ReadyFile {
 public:
  explicit ReadyFile(std::string path) : path_(std::move(path)) {}  // Empty: none.
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;
  ~ReadyFile() { Remove(); }

  // Errors: InvalidArgument where something is there that gemmd did not write: a device, a pipe, a
  // link, a folder or a file with another text.
  absl::Status Check() const;

  // All at once, so that a reader never sees half of the file; what a gemmd that was killed has
  // left makes room. Errors: as Check; Unavailable where it cannot be written.
  absl::Status Write(const std::vector<std::string>& addresses);

  // Removes what Write has written, where it is still there.
  void Remove();

 private:
  const std::string path_;
  bool is_written_ = false;
  dev_t device_ = 0;
  ino_t number_ = 0;  // With the device it says which file was written.
};

}  // namespace gemmd
