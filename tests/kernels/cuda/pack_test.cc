// SPDX-License-Identifier: Apache-2.0
//
// Packing of operands and metadata, with its threads run one after the other on the host.
#include <gtest/gtest.h>

#include <cstring>
#include <new>

#include "kernels/cuda/operands/pack_jobs.h"
#include "tests/kernels/cuda/pack_checks.h"

namespace gemmd {
namespace {

constexpr int kPackThreads = 7;

// Bytes at a multiple of 256, exactly as many as requested, so that AddressSanitizer detects reads
// of any other.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size)
      : data_(static_cast<std::byte*>(::operator new(size, kAlignment))) {}
  ~AlignedBytes() { ::operator delete(data_, kAlignment); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::byte* data() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{256};
  std::byte* data_;
};

template <int kBits, int kContainer>
void CopyLines(const PackJob& job, int shift) {
  for (int64_t matrix = 0; matrix < job.batch; ++matrix) {
    for (int64_t line = 0; line < job.lines; ++line) {
      const std::byte* source =
          job.source + matrix * job.source_batch_stride + line * job.source_line_stride;
      std::byte* target =
          job.target + matrix * job.target_batch_stride + line * job.target_line_stride;
      for (int64_t chunk = 0; chunk < job.target_line_stride / kChunkBytes; ++chunk) {
        StoreChunk(target + chunk * kChunkBytes,
                   AlongChunk<kBits, kContainer>(job, source, chunk, shift));
      }
    }
  }
}

template <int kBits, int kContainer>
void TurnLines(const PackJob& job, int shift) {
  using Form = PackForm<kBits, kContainer>;
  std::vector<typename Form::Word> staged(Form::kTile * Form::kStride);
  PackTile tile;
  for (tile.matrix = 0; tile.matrix < job.batch; ++tile.matrix) {
    for (tile.line = 0; tile.line < job.lines; tile.line += Form::kTile) {
      for (tile.element = 0; tile.element < job.length; tile.element += Form::kTile) {
        for (int thread = 0; thread < kPackThreads; ++thread) {
          StageTile<kBits, kContainer>(job, tile, shift, thread, kPackThreads, staged.data());
        }
        for (int thread = 0; thread < kPackThreads; ++thread) {
          StoreTile<kBits, kContainer>(job, tile, thread, kPackThreads, staged.data());
        }
      }
    }
  }
}

// Runs `pack`(source, workspace) on aligned copies and returns the workspace.
template <typename Pack>
std::vector<std::byte> WithWorkspace(const PackCase& test, const Pack& pack) {
  const AlignedBytes source(test.source.size());
  std::memcpy(source.data(), test.source.data(), test.source.size());
  const auto bytes = static_cast<size_t>(test.plan.workspace_bytes);
  const AlignedBytes workspace(bytes);
  std::memset(workspace.data(), 0xff, bytes);
  pack(source.data(), workspace.data());
  return std::vector<std::byte>(workspace.data(), workspace.data() + bytes);
}

std::vector<std::byte> PackOnHost(const PackCase& test) {
  return WithWorkspace(test, [&](const std::byte* source, std::byte* workspace) {
    const OperandPacking packing =
        PackingOf(test.row, test.operand, test.problem, test.operand_plan(), source, workspace)
            .value();
    WithPackForm(packing.bits, packing.container, [&]<int kBits, int kContainer>() {
      if (packing.lies_along) {
        CopyLines<kBits, kContainer>(packing.job, packing.shift);
      } else {
        TurnLines<kBits, kContainer>(packing.job, packing.shift);
      }
    });
  });
}

std::vector<std::byte> RepackOnHost(const PackCase& test) {
  return WithWorkspace(test, [&](const std::byte* source, std::byte* workspace) {
    const MetadataJob job =
        MetadataJobOf(test.row, test.problem, test.plan, source, workspace).value();
    for (int64_t matrix = 0; matrix < job.batch; ++matrix) {
      for (int64_t tile = 0; tile < job.tiles; ++tile) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const LaneOfTile at = LaneOfTileOf(job, matrix, tile, lane);
          uint32_t* const words = WordsOfTile(job, matrix, tile);
          for (int64_t step = 0; step < job.steps; ++step) {
            words[PlaceOfWord(job, step, lane)] = WordOfStep(job, at, step);
          }
        }
      }
    }
  });
}

TEST(PackTest, EveryTypeAndDirection) {
  RandomSource random;
  CheckPacking(PackOnHost, random);
}

TEST(PackTest, SparseValues) {
  RandomSource random;
  CheckPackingOfSparseValues(PackOnHost, random);
}

TEST(PackTest, Metadata) {
  RandomSource random;
  CheckMetadata(RepackOnHost, random);
}

}  // namespace
}  // namespace gemmd
