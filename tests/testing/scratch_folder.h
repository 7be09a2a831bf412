// SPDX-License-Identifier: Apache-2.0
//
// A private folder of one test, removed with it: tests run in parallel, in several builds at once.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX.

#include <filesystem>
#include <string>
#include <system_error>

namespace gemmd {

class ScratchFolder {
 public:
  ScratchFolder() : path_(::testing::TempDir() + "/gemmd_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "no folder " << path_;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace gemmd
