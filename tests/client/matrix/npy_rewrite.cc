// SPDX-License-Identifier: Apache-2.0
//
// Reads a .npy file and writes it again, for npy_check.py.
//
// usage: npy_rewrite IN OUT [TYPE]. Prints the element type and the order; exits 1 with the reason
// where the file is refused.
#include <cstdio>
#include <string>

#include "client/matrix/npy.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const auto hint = gemmd::ParseElementType(argc > 3 ? argv[3] : "");
  const auto array =
      gemmd::ReadNpyFile(argv[1], hint.value_or(gemmd::v1::ELEMENT_TYPE_UNSPECIFIED));
  const absl::Status status = array.ok() ? gemmd::WriteNpyFile(*array, argv[2]) : array.status();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  const bool by_columns = array->order == gemmd::v1::ORDER_COLUMN_MAJOR;
  std::printf("%s %s\n", std::string(gemmd::ElementTypeName(array->type)).c_str(),
              by_columns ? "column" : "row");
  return 0;
}
