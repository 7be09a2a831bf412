// SPDX-License-Identifier: Apache-2.0
//
// One operand of the command line: a file, standard input, or random numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/gemmctl/command.h"
#include "client/matrix/npy.h"
#include "client/output_file.h"
#include "client/terminal/console.h"
#include "gemmd/product.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// Reads a file, or the next array of standard input where the path is "-". Arrays follow each other
// there in the order A, B, C, bias, scales.
// Errors: as ReadNpyFile.
absl::StatusOr<NpyArray> ReadArray(const std::string& path, v1::ElementType hint,
                                   const Console& console,
                                   v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);

// Errors: InvalidArgument where standard input holds more than what was read.
absl::Status ExpectEndOfInput(const Console& console);

// Writes a file, or to standard output where the path is "-".
absl::Status WriteArray(const NpyArray& array, const std::string& path, const Console& console);

// As CheckOutputs; the files of the global flags are inputs too.
absl::Status CheckOutputFiles(const GlobalFlags& global, const std::vector<NamedFile>& outputs,
                              std::vector<NamedFile> inputs);

// A console whose results go to standard error where a matrix goes to standard output.
Console ReportBeside(const std::string& output_path, const Console& console);

// A random operand to be made. The shape is that of op(X).
struct RandomOperand {
  v1::ElementType type;
  int64_t batch;
  int64_t rows;
  int64_t columns;
  v1::Order order;
  bool transpose;
  uint64_t seed;
};

// The stored matrices, three-dimensional. Without `with_data` nothing is made but the shape.
// Errors: InvalidArgument where the sizes leave 63 bits. `field`: "a".
absl::StatusOr<NpyArray> MakeRandomArray(const std::string& field, const RandomOperand& operand,
                                         bool with_data);

// A view of an array of 2 or 3 dimensions. A two-dimensional one serves a whole batch.
// Errors: InvalidArgument for other arrays, and where a batch of arrays is not of `batch` matrices.
absl::StatusOr<MatrixView> ViewArray(const std::string& field, const NpyArray& array,
                                     bool transpose, int64_t batch);

// The values of a flag such as --scale-a: a number, or a .npy vector of floats.
absl::StatusOr<std::vector<float>> ReadScale(const std::string& flag, const std::string& text,
                                             const Console& console);

}  // namespace gemmd
