// SPDX-License-Identifier: Apache-2.0
//
// A shared library that is loaded while the program runs, so that the program starts without it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

class DynamicLibrary {
 public:
  // Loads the first of `names` that exists; each is a path, or a name for the loader to look up.
  // Errors: NotFound, with the loader's message for each name.
  static absl::StatusOr<DynamicLibrary> Load(const std::vector<std::string>& names);

  DynamicLibrary() = default;  // No library.
  DynamicLibrary(DynamicLibrary&& other) noexcept;
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;
  ~DynamicLibrary();

  const std::string& name() const { return name_; }

  // Errors: NotFound.
  template <typename Function>
  absl::Status Find(const char* symbol, Function*& function) const {
    void* address = nullptr;
    absl::Status status = FindAddress(symbol, address);
    function = reinterpret_cast<Function*>(address);
    return status;
  }

 private:
  DynamicLibrary(void* handle, std::string name);
  absl::Status FindAddress(const char* symbol, void*& address) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace gemmd
