// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

std::string Why(int error) { return std::generic_category().message(error); }

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<MappedSafetensors> MappedSafetensors::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read: ", Why(errno)));
  }
  struct stat facts = {};
  const bool is_file = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0;
  const size_t bytes = is_file ? static_cast<size_t>(facts.st_size) : 0;
  void* const memory = is_file ? mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": got no file of tensors, want a .safetensors file that is not empty"));
  }
  MappedSafetensors mapped;
  mapped.mapping_ = std::unique_ptr<std::byte, FileUnmapper>(static_cast<std::byte*>(memory),
                                                             FileUnmapper{bytes});
  const absl::string_view text(static_cast<const char*>(memory), bytes);
  const auto length =
      SafetensorsHeaderBytes(text.substr(0, kSafetensorsLengthBytes), facts.st_size);
  if (!length.ok()) return At(path, length.status());
  mapped.first_ = kSafetensorsLengthBytes + *length;
  auto header =
      ParseSafetensorsHeader(text.substr(kSafetensorsLengthBytes, static_cast<size_t>(*length)),
                             facts.st_size - mapped.first_);
  if (!header.ok()) return At(path, header.status());
  mapped.header_ = *std::move(header);
  return mapped;
}

absl::string_view MappedSafetensors::BytesOf(const SafetensorsEntry& tensor) const {
  const char* const data = reinterpret_cast<const char*>(mapping_.get());
  return {data + first_ + tensor.begin, static_cast<size_t>(tensor.bytes())};
}

const SafetensorsEntry* MappedSafetensors::Find(absl::string_view name) const {
  for (const SafetensorsEntry& tensor : header_.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Status SafetensorsWriter::Begin(const SafetensorsHeader& header) {
  // No size: what cannot be replaced must not be overwritten, as it may be the file that is read.
  const absl::Status status = file_.Open(path_, std::nullopt);
  return status.ok() ? Add(PrintSafetensorsHeader(header)) : status;
}

}  // namespace gemmd
