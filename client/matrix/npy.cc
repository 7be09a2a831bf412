// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/npy.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/matrix/npy_header.h"
#include "client/matrix/npy_storage.h"
#include "client/matrix/packed_matrix.h"
#include "client/output_file.h"

namespace gemmd {
namespace {

// Bytes between the position and the end of a regular file; nothing for pipes and the like.
std::optional<int64_t> RemainingBytes(std::FILE* file) {
  struct stat facts = {};
  const int descriptor = fileno(file);
  if (descriptor < 0 || fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode))
    return std::nullopt;
  const off_t position = ftello(file);
  if (position < 0) return std::nullopt;
  return std::max<int64_t>(0, facts.st_size - position);
}

absl::Status TooShort(absl::string_view what, int64_t got, int64_t want) {
  return absl::InvalidArgumentError(
      absl::StrCat("npy ", what, ": got ", got, " bytes, want ", want));
}

// Reads `count` bytes. What a stream does not deliver is never allocated, whatever `count` claims.
absl::StatusOr<std::string> ReadBytes(std::FILE* file, int64_t count, absl::string_view what) {
  constexpr int64_t kChunkBytes = int64_t{1} << 20;
  const std::optional<int64_t> remaining = RemainingBytes(file);
  if (remaining.has_value() && *remaining < count) return TooShort(what, *remaining, count);
  std::string bytes;
  if (remaining.has_value()) bytes.reserve(static_cast<size_t>(count));
  while (static_cast<int64_t>(bytes.size()) < count) {
    const size_t old_size = bytes.size();
    const size_t wanted =
        static_cast<size_t>(std::min(kChunkBytes, count - static_cast<int64_t>(old_size)));
    bytes.resize(old_size + wanted);
    const size_t got = std::fread(bytes.data() + old_size, 1, wanted, file);
    if (got < wanted) return TooShort(what, static_cast<int64_t>(old_size + got), count);
  }
  return bytes;
}

absl::StatusOr<NpyHeader> ReadHeader(std::FILE* file) {
  const auto prefix = ReadBytes(file, kNpyPrefixBytes, "magic");
  if (!prefix.ok()) return prefix.status();
  const auto length_bytes = NpyLengthBytes(*prefix);
  if (!length_bytes.ok()) return length_bytes.status();
  const auto length_field = ReadBytes(file, *length_bytes, "header length");
  if (!length_field.ok()) return length_field.status();
  const auto length = NpyHeaderBytes(*length_field);
  if (!length.ok()) return length.status();
  const auto text = ReadBytes(file, *length, "header");
  if (!text.ok()) return text.status();
  return ParseNpyHeader(*text);
}

// Bytes of the items; also checks the count of dimensions.
absl::StatusOr<int64_t> DataBytes(const NpyHeader& header) {
  if (header.shape.empty()) {
    return absl::InvalidArgumentError("npy shape: got 0 dimensions, want 1 to 3");
  }
  if (std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end()) return 0;
  int64_t bytes = header.item_bytes;
  for (int64_t extent : header.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::InvalidArgumentError("npy shape: got a size of 2^63 bytes or more, want less");
    }
  }
  return bytes;
}

// The length of a line and the count of lines of a whole array.
struct ArrayLines {
  int64_t length;
  int64_t count;
};

ArrayLines LinesOf(const NpyArray& array) {
  const PackedMatrix matrix = PackedArray(array, "");
  const bool by_columns = matrix.order == v1::ORDER_COLUMN_MAJOR;
  const bool is_empty = matrix.rows == 0 || matrix.columns == 0;
  return {.length = by_columns ? matrix.rows : matrix.columns,
          .count = is_empty ? 0 : matrix.batch * (by_columns ? matrix.columns : matrix.rows)};
}

// Puts the file's items into the wire's order: 1-D and 2-D stay as they are, a batch goes to C
// order.
void Arrange(const NpyHeader& header, std::string& items, NpyArray& array) {
  if (!header.fortran_order || header.shape.size() < 2) return;
  if (header.shape.size() == 2) {
    array.order = v1::ORDER_COLUMN_MAJOR;
    return;
  }
  const int64_t batch = header.shape[0];
  const int64_t rows = header.shape[1];
  const int64_t columns = header.shape[2];
  if (items.empty()) return;
  items = ToCOrder(items, header.item_bytes, {{batch, rows, columns}, {1, batch, batch * rows}});
}

// What a file of the array holds.
struct NpyText {
  std::string header;
  std::string rewritten;  // Items other than the array's own bytes.
  absl::string_view items;
};

// Borrows the array.
void Print(const NpyArray& array, NpyText& text) {
  NpyHeader header = NpyHeaderFor(array.type);
  header.shape = array.shape;
  const bool by_columns = array.order == v1::ORDER_COLUMN_MAJOR && array.shape.size() > 1;
  const bool is_batch = array.shape.size() == 3;
  header.fortran_order = by_columns && !is_batch;
  text.header = PrintNpyHeader(header);
  text.items = array.data;
  const ArrayLines lines = LinesOf(array);
  if (ElementBits(array.type) < 8) {
    text.rewritten = UnpackLines(array.type, array.data, lines.length, lines.count);
    text.items = text.rewritten;
  }
  if (by_columns && is_batch) {
    const int64_t rows = array.shape[1];
    const int64_t columns = array.shape[2];
    text.rewritten = ToCOrder(text.items, header.item_bytes,
                              {{array.shape[0], rows, columns}, {rows * columns, 1, rows}});
    text.items = text.rewritten;
  }
}

}  // namespace

absl::StatusOr<NpyArray> ReadNpy(std::FILE* file, v1::ElementType hint, v1::ElementType unnamed) {
  const auto header = ReadHeader(file);
  if (!header.ok()) return header.status();
  auto type = TypeOfNpy(*header, hint);
  if (!type.ok() && unnamed != v1::ELEMENT_TYPE_UNSPECIFIED) type = TypeOfNpy(*header, unnamed);
  if (!type.ok()) return type.status();
  const auto bytes = DataBytes(*header);
  if (!bytes.ok()) return bytes.status();
  auto items = ReadBytes(file, *bytes, "data");
  if (!items.ok()) return items.status();
  if (header->byte_order == '>') SwapBytes(header->item_bytes, *items);
  NpyArray array;
  array.type = *type;
  array.shape = header->shape;
  Arrange(*header, *items, array);
  if (ElementBits(*type) >= 8) {
    array.data = *std::move(items);
    return array;
  }
  auto packed = PackLines(*type, *items, LinesOf(array).length);
  if (!packed.ok()) return packed.status();
  array.data = *std::move(packed);
  return array;
}

absl::Status ExpectEndOfFile(std::FILE* file) {
  if (std::fgetc(file) == EOF) return absl::OkStatus();
  return absl::InvalidArgumentError("npy file: got bytes after the data, want its end");
}

absl::StatusOr<std::unique_ptr<std::FILE, FileCloser>> OpenNpy(const std::string& path) {
  std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file != nullptr) return file;
  const int error = errno;
  const std::string message =
      absl::StrCat(path, ": cannot be read: ", std::generic_category().message(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InternalError(message);
}

absl::StatusOr<NpyArray> ReadNpyFile(const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed) {
  const auto file = OpenNpy(path);
  if (!file.ok()) return file.status();
  return ReadNpyFile(file->get(), path, hint, unnamed);
}

absl::StatusOr<NpyArray> ReadNpyFile(std::FILE* file, const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed) {
  auto array = ReadNpy(file, hint, unnamed);
  const absl::Status status = array.ok() ? ExpectEndOfFile(file) : array.status();
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  return array;
}

absl::Status WriteNpy(const NpyArray& array, std::FILE* file) {
  NpyText text;
  Print(array, text);
  const bool is_written =
      std::fwrite(text.header.data(), 1, text.header.size(), file) == text.header.size() &&
      std::fwrite(text.items.data(), 1, text.items.size(), file) == text.items.size() &&
      std::fflush(file) == 0;
  if (!is_written)
    return absl::InternalError(
        absl::StrCat("npy file: cannot be written: ", std::generic_category().message(errno)));
  return absl::OkStatus();
}

absl::Status WriteNpyFile(const NpyArray& array, const std::string& path) {
  NpyText text;
  Print(array, text);
  OutputFile file;
  absl::Status status =
      file.Open(path, static_cast<int64_t>(text.header.size() + text.items.size()));
  if (status.ok()) status = file.Write(text.header);
  if (status.ok()) status = file.Write(text.items);
  return status.ok() ? file.Commit() : status;
}

}  // namespace gemmd
