// SPDX-License-Identifier: Apache-2.0
//
// Where a file is written whose path a user named, so that the old file stays whole until the new
// one is.
#pragma once

#include <string>

namespace gemmd {

class OutputPath {
 public:
  explicit OutputPath(const std::string& path);

  // Whether the path leads to a pipe, a terminal or another device. It is written to as it is, and
  // nothing takes its place.
  bool is_stream() const { return is_stream_; }

  // The file itself where the path is a link to it.
  const std::string& target() const { return target_; }

  // What to write: another name in the target's folder, or the target where that is a stream.
  const std::string& fresh() const { return fresh_; }

  // What was written takes the place of the target. False, with errno, where it cannot.
  bool Commit() const;

  // Removes what was written.
  void Discard() const;

 private:
  std::string target_;
  bool is_stream_;
  std::string fresh_;
};

}  // namespace gemmd
