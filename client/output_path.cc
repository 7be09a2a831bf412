// SPDX-License-Identifier: Apache-2.0
#include "client/output_path.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

namespace fs = std::filesystem;

std::string TargetOf(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target.string();
}

bool IsStream(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

}  // namespace

OutputPath::OutputPath(const std::string& path)
    : target_(TargetOf(path)),
      is_stream_(IsStream(path)),
      fresh_(is_stream_ ? path : absl::StrCat(target_, ".", getpid(), ".part")) {}

bool OutputPath::Commit() const {
  return is_stream_ || std::rename(fresh_.c_str(), target_.c_str()) == 0;
}

void OutputPath::Discard() const {
  if (!is_stream_) unlink(fresh_.c_str());
}

}  // namespace gemmd
