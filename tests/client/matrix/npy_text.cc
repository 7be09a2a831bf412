// SPDX-License-Identifier: Apache-2.0
#include "tests/client/matrix/npy_text.h"

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

std::string RawNpyHeader(int major_version, absl::string_view dict) {
  std::string text("\x93NUMPY", 6);
  text.push_back(static_cast<char>(major_version));
  text.push_back(0);
  const int length_bytes = major_version == 1 ? 2 : 4;
  for (int i = 0; i < length_bytes; ++i)
    text.push_back(static_cast<char>(dict.size() >> (8 * i) & 0xff));
  text.append(dict.data(), dict.size());
  return text;
}

std::string NpyFileText(absl::string_view descr, absl::string_view shape, absl::string_view data,
                        bool fortran) {
  const std::string dict =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': ", fortran ? "True" : "False",
                   ", 'shape': ", shape, "}\n");
  return absl::StrCat(RawNpyHeader(1, dict), data);
}

absl::StatusOr<NpyArray> ReadNpyText(absl::string_view text, v1::ElementType hint) {
  std::string buffer(text);
  // fmemopen does not accept an empty buffer.
  std::FILE* const file =
      buffer.empty() ? std::fopen("/dev/null", "rb") : fmemopen(buffer.data(), buffer.size(), "rb");
  if (file == nullptr) return absl::InternalError("fmemopen failed");
  auto array = ReadNpy(file, hint);
  std::fclose(file);
  return array;
}

std::string WriteNpyText(const NpyArray& array) {
  char* buffer = nullptr;
  size_t size = 0;
  std::FILE* const file = open_memstream(&buffer, &size);
  const absl::Status status = WriteNpy(array, file);
  std::fclose(file);
  std::string text = status.ok() ? std::string(buffer, size) : status.ToString();
  std::free(buffer);
  return text;
}

}  // namespace gemmd
