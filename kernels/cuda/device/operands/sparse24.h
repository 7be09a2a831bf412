// SPDX-License-Identifier: Apache-2.0
//
// The functions of kernels/matrix/sparse24.h on a GPU, equal to those byte for byte. All pointers
// point to memory of the current GPU; `dense` and `compressed` are aligned to 256 bytes. No
// function waits. Tensors.Compress calls CompressViewOnStream for tensors that are on a GPU; only
// tests call the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/sparse_groups.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Both functions write to `cleared` how many nonzero elements became zero.
absl::Status PruneOnStream(const SparseLayout& layout, std::byte* dense, int64_t* cleared,
                           CUstream_st* stream);
absl::Status PruneBothWaysOnStream(const SparseLayout& layout, std::byte* dense, int64_t* cleared,
                                   CUstream_st* stream);

// Both functions check as CheckPruned and CheckCompressed do; sparse24.h has the messages.
absl::Status CheckPrunedOnStream(const SparseLayout& layout, const std::byte* dense, BadGroup* bad,
                                 CUstream_st* stream);
absl::Status CheckCompressedOnStream(const SparseLayout& layout, const std::byte* compressed,
                                     BadGroup* bad, CUstream_st* stream);

// Checks, and compresses even if a check fails: the result of a bad group has no meaning.
absl::Status CompressOnStream(const SparseLayout& layout, const std::byte* dense,
                              std::byte* compressed, BadGroup* bad, CUstream_st* stream);

// Prunes and compresses some lines of several matrices (CompressView), which need only be aligned
// to their elements. Writes to `bad` what CompressLines returns.
absl::Status CompressViewOnStream(const CompressView& view, BadGroup* bad, CUstream_st* stream);

absl::Status ExpandOnStream(const SparseLayout& layout, const std::byte* compressed,
                            std::byte* dense, CUstream_st* stream);

}  // namespace gemmd
