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

// Reads a file, or the next array of standard input if the path is "-". Standard input has the
// arrays in the order A, B, C, bias, scales. Errors: those of ReadNpyFile.
absl::StatusOr<NpyArray> ReadArray(const std::string& path, v1::ElementType hint,
                                   const Console& console,
                                   v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);

// As ReadArray, but the bytes stay in the mapped file if they are already in the wire's format.
absl::StatusOr<MappedNpy> MapArray(const std::string& path, v1::ElementType hint,
                                   const Console& console);

// Errors: InvalidArgument if standard input has more data than was read.
absl::Status ExpectEndOfInput(const Console& console);

// Writes a file, or to standard output if the path is "-".
absl::Status WriteArray(const NpyArray& array, const std::string& path, const Console& console);

// As CheckOutputs; the files of the global flags are inputs too.
absl::Status CheckOutputFiles(const GlobalFlags& global, const std::vector<NamedFile>& outputs,
                              std::vector<NamedFile> inputs);

// A console that prints results to standard error if a matrix goes to standard output.
Console ReportBeside(const std::string& output_path, const Console& console);

// Describes a random operand. The shape is that of op(X).
struct RandomOperand {
  v1::ElementType type;
  int64_t batch;
  int64_t rows;
  int64_t columns;
  v1::Order order;
  bool transpose;
  uint64_t seed;
};

// The stored matrices, three-dimensional. Without `with_data`, only the shape. Errors:
// InvalidArgument if sizes exceed 63 bits. `field`: "a".
absl::StatusOr<NpyArray> MakeRandomArray(const std::string& field, const RandomOperand& operand,
                                         bool with_data);

// A view of an array of 2 or 3 dimensions. A two-dimensional one serves a whole batch.
// Errors: InvalidArgument for other arrays, and if a batch does not have `batch` matrices.
absl::StatusOr<MatrixView> ViewArray(const std::string& field, const NpyArray& array,
                                     bool transpose, int64_t batch);

// The values of a flag such as --scale-a: a number, or a .npy vector of floats.
absl::StatusOr<std::vector<float>> ReadScale(const std::string& flag, const std::string& text,
                                             const Console& console);

// "[2, 17, 5]": matrix, row and column; the matrix for a batch alone.
std::string PlaceText(int64_t batches, int64_t batch, int64_t row, int64_t column);

// "0x7fc00000", with as many digits as the type needs.
std::string PatternText(v1::ElementType type, uint64_t pattern);

// "1.5", with enough digits to distinguish the value from its neighbours.
std::string ElementText(v1::ElementType type, uint64_t pattern);

// Block factors from the command line: --blocks-a gives their format, --scale-a their file.
struct BlockFile {
  BlockScaleView form = {};  // Without its bytes.
  NpyArray factors = {};

  // Valid while this object exists unchanged.
  BlockScaleView view() const;
};

// Reads factors: `form` is "f32:1x128", `path` a .npy file of two dimensions, or of three with a
// matrix of factors for each matrix of the batch.
// Errors: InvalidArgument, naming the flags, for another form or array; as ReadArray.
absl::StatusOr<BlockFile> ReadBlocks(const std::string& form_flag, const std::string& form,
                                     const std::string& path_flag, const std::string& path,
                                     const Console& console);

}  // namespace gemmd
