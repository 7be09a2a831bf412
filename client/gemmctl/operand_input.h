// SPDX-License-Identifier: Apache-2.0
//
// One operand of the command line: a file, standard input, or random numbers; and its scale
// factors.
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

// As ReadArray; the bytes stay in the file where they are those of the wire already.
absl::StatusOr<MappedNpy> MapArray(const std::string& path, v1::ElementType hint,
                                   const Console& console);

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

// "[2, 17, 5]": matrix, row and column; the matrix for a batch alone.
std::string PlaceText(int64_t batches, int64_t batch, int64_t row, int64_t column);

// "0x7fc00000", with the digits that the type has.
std::string PatternText(v1::ElementType type, uint64_t pattern);

// "1.5", with as many digits as tell the value from its neighbours.
std::string ElementText(v1::ElementType type, uint64_t pattern);

// Factors of blocks from the command line: --blocks-a says what they are, --scale-a where.
struct BlockFile {
  BlockScaleView form = {};  // Without its bytes.
  NpyArray factors = {};

  // Valid while this is there, unchanged.
  BlockScaleView view() const;
};

// Reads factors: `form` is "f32:1x128", `path` a .npy file of two dimensions, or of three with a
// matrix of factors for each matrix of the batch.
// Errors: InvalidArgument, naming the flags, for another form or array; as ReadArray.
absl::StatusOr<BlockFile> ReadBlocks(const std::string& form_flag, const std::string& form,
                                     const std::string& path_flag, const std::string& path,
                                     const Console& console);

}  // namespace gemmd
