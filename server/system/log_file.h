// SPDX-License-Identifier: Apache-2.0
//
// Where log lines go: a file, or standard error, whoever reads it and however slowly.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

class LogFile {
 public:
  // Appends to the file, and makes it and its folder where they are missing.
  // Errors: InvalidArgument where it cannot be opened.
  static absl::StatusOr<LogFile> Open(const std::string& path);

  // Whatever standard error is. Borrows it.
  static LogFile StandardError() { return Of(2); }

  // Borrows the descriptor.
  static LogFile Of(int descriptor);

  // Writes as much of the text as is taken at once, and returns how much that is: 0 where whoever
  // reads stands still. Nothing where the file cannot be written: the reader has gone, no space is
  // left on the disk.
  std::optional<size_t> TryWrite(std::string_view text) const;

  int descriptor() const { return descriptor_; }

 private:
  enum class Kind { kNeverWaits, kSocket, kMayWait };

  LogFile(int descriptor, FileDescriptor owned, Kind kind)
      : descriptor_(descriptor), owned_(std::move(owned)), kind_(kind) {}

  int descriptor_;
  FileDescriptor owned_;
  Kind kind_;
};

}  // namespace gemmd
