// SPDX-License-Identifier: Apache-2.0
//
// NumPy .npy files as matrices of the wire, and back.
//
// In a file every element takes whole bytes; on the wire sub-byte elements are packed along their
// line. NumPy has no name for most of the narrow types, so numpy.save writes (numpy 1.26 and 2.4,
// ml_dtypes 0.3 to 0.6): bfloat16 as '<V2', float8_e5m2 as '<f1', and float8_e4m3fn, float6_*,
// float4_e2m1fn, int4 and uint4 all as '<V1', which only the reader's hint tells apart. This writer
// writes '<V2' and '|V1', to be read with `numpy.load(path).view(ml_dtypes.bfloat16)` and so on,
// because numpy.load refuses '<f1'.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// An array of 1 (a vector: one line), 2 (rows, columns) or 3 (batch, rows, columns) dimensions.
struct NpyArray {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape = {};
  v1::Order order = v1::ORDER_ROW_MAJOR;  // The order of each matrix of a batch.
  std::string data = {};                  // Packed lines without gaps, as tensors.proto says.
};

// Reads one array and nothing after it, so that arrays may follow each other in a stream.
// `unnamed` stands for the hint where the file does not fit that or says nothing without it.
//
// `hint` is the element type that the caller expects, or ELEMENT_TYPE_UNSPECIFIED. It tells '<V1'
// types apart; it reads <f4 as tf32, u1 as raw bits of any type of at most 8 bits, u2 as those of
// f16 or bf16, and i1 as s4. Big-endian files are swapped, 3-D Fortran arrays put in C order.
//
// Errors: InvalidArgument where the file is not such an array, is shorter than it claims, holds a
// value that the narrow type lacks, or does not fit the hint.
absl::StatusOr<NpyArray> ReadNpy(std::FILE* file, v1::ElementType hint,
                                 v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);

// Errors: InvalidArgument unless everything has been read.
absl::Status ExpectEndOfFile(std::FILE* file);

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// Opens a file to read. Errors: NotFound or Internal, with the path.
absl::StatusOr<std::unique_ptr<std::FILE, FileCloser>> OpenNpy(const std::string& path);

// Reads a whole file. Errors: as ReadNpy and OpenNpy, each beginning with the path.
absl::StatusOr<NpyArray> ReadNpyFile(const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);
absl::StatusOr<NpyArray> ReadNpyFile(std::FILE* file, const std::string& path, v1::ElementType hint,
                                     v1::ElementType unnamed = v1::ELEMENT_TYPE_UNSPECIFIED);

// Writes one array in format 1.0. Errors: Internal where writing fails.
absl::Status WriteNpy(const NpyArray& array, std::FILE* file);

// Writes an OutputFile. Errors: as WriteNpy.
absl::Status WriteNpyFile(const NpyArray& array, const std::string& path);

}  // namespace gemmd
