// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/npy_map.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "client/matrix/npy_header.h"
#include "client/matrix/npy_storage.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

struct FoundHeader {
  NpyHeader header;
  size_t bytes;  // With prefix and length.
};

std::optional<FoundHeader> FindHeader(absl::string_view file) {
  const size_t prefix = static_cast<size_t>(kNpyPrefixBytes);
  if (file.size() < prefix) return std::nullopt;
  const auto length_bytes = NpyLengthBytes(file.substr(0, prefix));
  if (!length_bytes.ok()) return std::nullopt;
  const size_t after = prefix + static_cast<size_t>(*length_bytes);
  if (file.size() < after) return std::nullopt;
  const auto bytes = NpyHeaderBytes(file.substr(prefix, after - prefix));
  if (!bytes.ok() || file.size() - after < static_cast<size_t>(*bytes)) return std::nullopt;
  auto header = ParseNpyHeader(file.substr(after, static_cast<size_t>(*bytes)));
  if (!header.ok()) return std::nullopt;
  return FoundHeader{*std::move(header), after + static_cast<size_t>(*bytes)};
}

// Whether so many bytes are exactly those of the header's elements.
bool HasSize(const NpyHeader& header, size_t got) {
  int64_t bytes = header.item_bytes;
  for (const int64_t extent : header.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return false;
  }
  return static_cast<size_t>(bytes) == got;
}

}  // namespace

void FileUnmapper::operator()(std::byte* memory) const { munmap(memory, bytes); }

std::span<const std::byte> MappedNpy::data() const {
  if (mapping_ == nullptr) return std::as_bytes(std::span(array_.data));
  return std::span<const std::byte>(mapping_.get(), mapping_.get_deleter().bytes).subspan(first_);
}

absl::StatusOr<MappedNpy> MappedNpy::Open(const std::string& path, v1::ElementType hint) {
  MappedNpy npy;
  const auto file = OpenNpy(path);
  if (!file.ok()) return file.status();
  const int descriptor = fileno(file->get());
  struct stat facts = {};
  if (fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0) {
    const size_t bytes = static_cast<size_t>(facts.st_size);
    void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory != MAP_FAILED) {
      npy.mapping_ = std::unique_ptr<std::byte, FileUnmapper>(static_cast<std::byte*>(memory),
                                                              FileUnmapper{bytes});
    }
  }
  if (npy.mapping_ != nullptr) {
    const absl::string_view text(reinterpret_cast<const char*>(npy.mapping_.get()),
                                 static_cast<size_t>(facts.st_size));
    const auto found = FindHeader(text);
    const auto type = found.has_value() ? TypeOfNpy(found->header, hint)
                                        : absl::InvalidArgumentError("no header");
    const bool is_plain = type.ok() && ElementBits(*type) >= 8 && found->header.byte_order != '>' &&
                          !found->header.shape.empty() &&
                          !(found->header.fortran_order && found->header.shape.size() == 3) &&
                          HasSize(found->header, text.size() - found->bytes);
    if (is_plain) {
      npy.array_.type = *type;
      npy.array_.shape = found->header.shape;
      const bool by_columns = found->header.fortran_order && found->header.shape.size() == 2;
      npy.array_.order = by_columns ? v1::ORDER_COLUMN_MAJOR : v1::ORDER_ROW_MAJOR;
      npy.first_ = found->bytes;
      return npy;
    }
    npy.mapping_ = nullptr;
  }
  auto array = ReadNpyFile(file->get(), path, hint);
  if (!array.ok()) return array.status();
  npy.array_ = *std::move(array);
  return npy;
}

std::string NpyBeginning(const NpyArray& array) {
  NpyHeader header = NpyHeaderFor(array.type);
  header.shape = array.shape;
  header.fortran_order = array.order == v1::ORDER_COLUMN_MAJOR;
  return PrintNpyHeader(header);
}

}  // namespace gemmd
