// SPDX-License-Identifier: Apache-2.0
//
// Files that a user told a program to write.
//
// A regular file is replaced by a new one when that is whole; until then, and if that fails, the
// old one stays as it is. A pipe, a terminal or a device is written to, and so is the file that
// standard output or standard error goes to. Links are followed, even to a file that is not there
// yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemmd {

// Not for use by several threads at once. Errors: NotFound or Internal, with the path and why.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // Without Commit, removes what was written.

  // Whether the path names what is written to, and not replaced.
  static bool IsStream(const std::string& path);

  // Whether Open can be expected to succeed. Changes nothing, and opens no pipe.
  static absl::Status Check(const std::string& path);

  // Waits for the reader of a pipe. `bytes` is the size of all that will be written: with it, a
  // file that cannot be replaced is overwritten if the disk has room for so many bytes. `stops`
  // counts signals: after one, a pipe without a reader is an error.
  absl::Status Open(const std::string& path, std::optional<int64_t> bytes,
                    const std::atomic<int>* stops = nullptr);

  absl::Status Write(absl::string_view bytes);
  absl::Status WriteAt(int64_t offset, absl::string_view bytes);  // Not into a stream.

  // Puts what was written in the place of the old file.
  absl::Status Commit();

 private:
  absl::Status OpenStream(bool is_pipe);
  absl::Status OpenBeside(bool is_there, std::optional<int64_t> bytes);
  absl::Status Reserve(int64_t bytes);
  absl::Status Overwrite();
  absl::Status Failed(int error) const;
  bool is_in_place() const { return file_ >= 0 && file_ == old_; }

  std::string path_;
  std::string target_;      // Where the links of the path lead.
  std::string fresh_;       // The new file. Empty: there is none.
  int old_ = -1;            // The file that is there.
  int64_t old_bytes_ = -1;  // Its size, if it was made larger. -1: it was not.
  int file_ = -1;           // What is written to.
  int64_t position_ = 0;
  const std::atomic<int>* stops_ = nullptr;
  int past_stops_ = 0;  // Those before the file was open.
};

// A file that an option names; an empty path names none.
struct NamedFile {
  std::string option;
  std::string path;
};

// Checks that each output is a file of its own: neither another output nor one of the inputs, by
// whatever path. "-" is standard output. A device such as /dev/null may be named twice.
// Errors: InvalidArgument, naming both options.
absl::Status CheckOutputs(const std::vector<NamedFile>& outputs,
                          const std::vector<NamedFile>& inputs);

// Errors: NotFound, naming the path and why.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Whether WriteTextFile can be expected to succeed; a file that is there stays as it is.
// Errors: PermissionDenied, naming the path and why.
absl::Status CheckWritable(const std::string& path);

// Writes an OutputFile; `stops` is that of its Open. Errors: as CheckWritable.
absl::Status WriteTextFile(const std::string& path, const std::string& text,
                           const std::atomic<int>* stops = nullptr);

}  // namespace gemmd
