// SPDX-License-Identifier: Apache-2.0
//
// Where log lines go: a file, or standard error, whoever reads it and however slowly.
#pragma once

#include <cstddef>
#include <functional>
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

  // One that is written by this function, as TryWrite is, which may take any time.
  using Write = std::function<std::optional<size_t>(std::string_view text)>;
  static LogFile Stalling(Write write) { return {-1, {}, Kind::kStalls, std::move(write)}; }

  // Whether a write may take any time: that of a disk does, and nothing tells beforehand.
  bool may_stall() const { return kind_ == Kind::kStalls; }

  // Writes as much of the text as is taken at once, and returns how much that is: 0 where whoever
  // reads stands still. Nothing where the file cannot be written: the reader has gone, no space is
  // left on the disk.
  std::optional<size_t> TryWrite(std::string_view text) const;

  int descriptor() const { return descriptor_; }

 private:
  enum class Kind { kNeverWaits, kSocket, kMayWait, kStalls };

  LogFile(int descriptor, FileDescriptor owned, Kind kind, Write write = nullptr)
      : descriptor_(descriptor), owned_(std::move(owned)), kind_(kind), write_(std::move(write)) {}

  int descriptor_;
  FileDescriptor owned_;
  Kind kind_;
  Write write_;  // Null: `descriptor_` is written.
};

}  // namespace gemmd
