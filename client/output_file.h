// SPDX-License-Identifier: Apache-2.0
//
// Output files named by the user.
//
// A regular file is replaced by a new one once that is complete; until then, and on failure, the
// old file is unchanged. A pipe, a terminal, a device, and a file that is standard output or
// standard error are written in place. Links are followed, even to a file that does not exist yet.
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

// Not thread-safe. Errors: NotFound or Internal, with the path and why.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // Without Commit, removes the new file.

  // Whether the path names a stream, which is written in place and not replaced.
  static bool IsStream(const std::string& path);

  // Whether Open is likely to succeed. Changes nothing, and opens no pipe.
  static absl::Status Check(const std::string& path);

  // Waits for the reader of a pipe. `bytes` is the total size to be written: if given, a file that
  // cannot be replaced is overwritten, provided that the disk has room. `stops` counts signals:
  // after one, a pipe without a reader is an error.
  absl::Status Open(const std::string& path, std::optional<int64_t> bytes,
                    const std::atomic<int>* stops = nullptr);

  absl::Status Write(absl::string_view bytes);
  absl::Status WriteAt(int64_t offset, absl::string_view bytes);  // Not for streams.

  // Replaces the old file by what was written.
  absl::Status Commit();

 private:
  absl::Status OpenStream(bool is_pipe);
  absl::Status OpenBeside(bool is_there, std::optional<int64_t> bytes);
  absl::Status Reserve(int64_t bytes);
  absl::Status Overwrite();
  absl::Status Failed(int error) const;
  bool is_in_place() const { return file_ >= 0 && file_ == old_; }

  std::string path_;
  std::string target_;      // The path with links resolved.
  std::string fresh_;       // Path of the new file; empty: none.
  int old_ = -1;            // The existing file.
  int64_t old_bytes_ = -1;  // The old file's original size if it was extended; else -1.
  int file_ = -1;           // The descriptor written to.
  int64_t position_ = 0;
  const std::atomic<int>* stops_ = nullptr;
  int past_stops_ = 0;  // Signals before the file was open.
};

// A file that an option names; an empty path names none.
struct NamedFile {
  std::string option;
  std::string path;
};

// Checks that each output differs from all other outputs and inputs, by any path. "-" is standard
// output. A device such as /dev/null may be named twice. Errors: InvalidArgument, naming both
// options.
absl::Status CheckOutputs(const std::vector<NamedFile>& outputs,
                          const std::vector<NamedFile>& inputs);

// Errors: NotFound, naming the path and why.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Whether WriteTextFile is likely to succeed; does not change an existing file. Errors:
// PermissionDenied, naming the path and why.
absl::Status CheckWritable(const std::string& path);

// Writes an OutputFile; `stops` is that of its Open. Errors: those of CheckWritable.
absl::Status WriteTextFile(const std::string& path, const std::string& text,
                           const std::atomic<int>* stops = nullptr);

}  // namespace gemmd
