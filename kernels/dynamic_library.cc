// SPDX-License-Identifier: Apache-2.0
#include "kernels/dynamic_library.h"

#include <dlfcn.h>

#include <utility>

#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

// The loader's message about the latest error.
std::string LoaderError() {
  const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): one thread loads.
  return error == nullptr ? "unknown error" : error;
}

}  // namespace

absl::StatusOr<DynamicLibrary> DynamicLibrary::Load(const std::vector<std::string>& names) {
  std::string errors;
  for (const std::string& name : names) {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return DynamicLibrary(handle, name);
    errors += (errors.empty() ? "" : "; ") + LoaderError();
  }
  return absl::NotFoundError(errors);
}

DynamicLibrary::DynamicLibrary(void* handle, std::string name)
    : handle_(handle), name_(std::move(name)) {}

DynamicLibrary::DynamicLibrary(DynamicLibrary&& other) noexcept { *this = std::move(other); }

DynamicLibrary& DynamicLibrary::operator=(DynamicLibrary&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(name_, other.name_);
  return *this;
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

absl::Status DynamicLibrary::FindAddress(const char* symbol, void*& address) const {
  address = dlsym(handle_, symbol);
  if (address != nullptr) return absl::OkStatus();
  return absl::NotFoundError(Concat(name_, ": no function ", symbol));
}

}  // namespace gemmd
