// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/text_file.h"

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/output_file.h"

namespace gemmd {
namespace {

absl::Status AsDenied(const absl::Status& status) {
  return status.ok() ? status : absl::PermissionDeniedError(status.message());
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && (file.peek() == std::ifstream::traits_type::eof() || text << file.rdbuf())) {
    if (!file.bad()) return text.str();
  }
  return absl::NotFoundError(
      absl::StrCat(path, ": cannot be read: ", std::generic_category().message(errno)));
}

absl::Status CheckWritable(const std::string& path) { return AsDenied(OutputFile::Check(path)); }

absl::Status WriteTextFile(const std::string& path, const std::string& text,
                           const std::atomic<int>* stops) {
  OutputFile file;
  absl::Status status = file.Open(path, static_cast<int64_t>(text.size()), stops);
  if (status.ok()) status = file.Write(text);
  if (status.ok()) status = file.Commit();
  return AsDenied(status);
}

}  // namespace gemmd
