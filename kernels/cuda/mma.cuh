// SPDX-License-Identifier: Apache-2.0
//
// The kernel of every row: a multistage product on tensor cores.
//
// Tiles of A and B come into shared memory several stages ahead, by the copy engine (sm_90) or by
// cp.async, and from there into fragments by ldmatrix (f64 and m8n8k4: by loads of 8 bytes; wmma:
// by its own), where registers are left one step of k ahead of the instructions. Each accumulator
// gets the instructions in ascending k, from zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/mma_parameters.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_table.h"
#include "kernels/cuda/wmma_ptx.cuh"
#include "kernels/mma/support.h"

namespace gemmd {

template <size_t kIndex>
inline constexpr CudaRow kRow = kCudaRows[kIndex];

// What the row's instruction is called; see ptx.cuh.
template <size_t kIndex>
struct RowMnemonic {
  static constexpr mma::PtxMnemonic kSource = mma::PtxOf(kRow<kIndex>.instruction);
};

template <size_t kIndex, bool kIsA>
struct WmmaLoadMnemonic {
  static constexpr mma::PtxMnemonic kSource = mma::WmmaLoadPtxOf(kRow<kIndex>.instruction, kIsA);
};

// Constants are copied into each function that passes them on: device code cannot refer to those of
// a class or namespace.
template <size_t kIndex, mma::Operand kOperand>
__device__ mma::Position PositionInFragment(int lane, int element) {
  constexpr mma::Instruction kInstruction = kRow<kIndex>.instruction;
  return mma::PositionOf(kInstruction, kOperand, lane, element);
}

template <size_t kIndex, mma::Operand kOperand>
__device__ int OffsetInTile(int line, int byte) {
  constexpr TileLines kLines = TileLinesOf(kRow<kIndex>, kOperand);
  return kLines.OffsetOf(line, byte);
}

template <size_t kIndex, mma::Operand kOperand>
__device__ int SwizzleInTile(int line) {
  constexpr TileLines kLines = TileLinesOf(kRow<kIndex>, kOperand);
  return kLines.SwizzleOf(line);
}

// Copies one operand's tiles, one after the other along k, each thread the same chunk of several
// lines: a round of copies for each.
//
// What lies beyond k is zero. Lines of rows and columns beyond m and n are copies of the last one,
// since nothing of what becomes of them is stored.
template <size_t kIndex, mma::Operand kOperand>
class TileCopy {
 public:
  static constexpr TileLines kLines = TileLinesOf(kRow<kIndex>, kOperand);
  static constexpr int kChunks = kLines.chunks();
  static constexpr int kLinesOfRound = kRow<kIndex>.threads() / kChunks;
  static constexpr int kRounds = (kLines.lines + kLinesOfRound - 1) / kLinesOfRound;

  // `first` is the tile's first row of A or column of B.
  __device__ TileCopy(const OperandLines& operand, int64_t batch, int64_t first, uint32_t shared,
                      int thread)
      : operand_(operand), line_(thread / kChunks) {
    const int chunk = thread % kChunks;
    shared_ = shared + OffsetInTile<kIndex, kOperand>(line_, 16 * chunk);
    source_ = operand.data + batch * operand.batch_stride_bytes + 16 * chunk +
              int64_t{line_} * operand.line_stride_bytes;
    bytes_ = operand.line_bytes - 16 * chunk;
    if constexpr (kIsAlongK) {
      source_ += first * operand.line_stride_bytes;
      lines_after_ = operand.lines - 1 - static_cast<int>(first) - line_;
    } else {
      constexpr int kBits = mma::ContainerBits(kRow<kIndex>.instruction, kOperand);
      source_ += first * kBits / 8;
      bytes_ -= static_cast<int>(first * kBits / 8);
      lines_after_ = operand.lines - 1 - line_;
    }
  }

  // Copies the tile to the stage at `offset` of the shared memory.
  __device__ void Copy(int offset) const {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (kLines.lines % kLinesOfRound != 0 && line_ + i * kLinesOfRound >= kLines.lines) break;
      const bool is_inside = kIsAlongK || i * kLinesOfRound <= lines_after_;
      ptx::CopyAsync(
          shared_ + offset + i * kLinesOfRound * kLines.stride(),
          ptx::Advance(source_, min(i * kLinesOfRound, lines_after_), operand_.line_stride_bytes),
          is_inside && bytes_ > 0);
    }
  }

  // To the next tile.
  __device__ void Advance() {
    if constexpr (kIsAlongK) {
      source_ += kLines.line_bytes;
      bytes_ -= kLines.line_bytes;
    } else {
      source_ += int64_t{kLines.lines} * operand_.line_stride_bytes;
      lines_after_ -= kLines.lines;
    }
  }

 private:
  static constexpr bool kIsAlongK = kLines.axis == LineAxis::kK;
  static_assert(kRow<kIndex>.threads() % kChunks == 0,
                "a thread copies the same chunk of every line");
  static_assert(kLines.SwizzleOf(kLinesOfRound) == 0 || kRounds == 1,
                "chunks trade places alike in every round");

  const OperandLines& operand_;
  const std::byte* source_;  // Of this thread's first line.
  int bytes_;                // Of a line from this thread's chunk on; negative behind its end.
  int line_;                 // This thread's first one in the tile.
  int lines_after_;          // Of the operand after this thread's first one; may be negative.
  uint32_t shared_;
};

// The fragments of one operand for one step along k of a warp: of A whole, of B the part that is
// held at a time.
template <size_t kIndex, mma::Operand kOperand>
struct Fragments {
  static constexpr mma::Instruction kInstruction = kRow<kIndex>.instruction;
  static constexpr TileLines kLines = TileLinesOf(kRow<kIndex>, kOperand);
  static constexpr bool kIsA = kOperand == mma::Operand::kA;
  static constexpr bool kIsF64 = kInstruction.a == ElementType::kF64;
  static constexpr bool kIsQuad = kInstruction.products() == 4;  // m8n8k4 with f16.
  static constexpr bool kIsWmma = kInstruction.family == mma::Family::kWmma;
  static constexpr int kCount = kIsA ? InstructionsDown(kRow<kIndex>)
                                     : InstructionsAcross(kRow<kIndex>) / PartsOfB(kRow<kIndex>);
  static constexpr int kExtent = kIsA ? kRow<kIndex>.instruction_rows() : kInstruction.n;
  static constexpr int kElements = mma::ElementsPerLane(kInstruction, kOperand);
  static constexpr int kWords = kIsF64 ? kElements : mma::WordsPerLane(kInstruction, kOperand);
  static constexpr int kBits = mma::ContainerBits(kInstruction, kOperand);
  static constexpr int kStepBytes = (kIsA ? kInstruction.a_columns() : kInstruction.k) * kBits / 8;
  using Word = std::conditional_t<kIsF64, double, uint32_t>;

  Word words[kCount][kWords];
};

// Where a lane finds the fragments of an operand in a stage.
template <size_t kIndex, mma::Operand kOperand>
class FragmentLoader {
 public:
  using Target = Fragments<kIndex, kOperand>;

  // `first` is the warp's first row or column in the tile; `shared` where the operand's part of the
  // first stage begins.
  __device__ FragmentLoader(uint32_t shared, int first, int lane) : shared_(shared) {
    if constexpr (Target::kIsF64 || Target::kIsQuad || Target::kIsWmma) {
      first_ = first;
      lane_ = lane;
    } else {
      // Lane 8i + j points at line j of matrix i of four. Matrices of an instruction: its rows'
      // halves, then chunks along k.
      constexpr int kHalves = Target::kExtent / 8;
      const int matrix = lane / 8 % kOfInstruction;
      const int line =
          first + lane / 8 / kOfInstruction * Target::kExtent + matrix % kHalves * 8 + lane % 8;
      chunk_ = matrix / kHalves;
      swizzle_ = SwizzleInTile<kIndex, kOperand>(line);
      shared_ += line * kLines.stride();
    }
  }

  // `part` counts the parts of B.
  __device__ void Load(int offset, int step, int part, Target& target) const {
    offset += part * Target::kCount * Target::kExtent * kLines.stride();
    if constexpr (Target::kIsWmma) {
      LoadWmma(offset, step, target);
    } else if constexpr (Target::kIsF64) {
      LoadF64(offset, step, target);
    } else if constexpr (Target::kIsQuad) {
      LoadQuad(offset, step, target);
    } else {
      LoadByMatrices(offset, step, target);
    }
  }

 private:
  static constexpr mma::Instruction kInstruction = Target::kInstruction;
  static constexpr TileLines kLines = Target::kLines;
  static constexpr int kOfInstruction = Target::kExtent / 8 * (Target::kStepBytes / 16);

  __device__ void LoadByMatrices(int offset, int step, Target& target) const {
    static_assert(kOfInstruction <= 4 && 4 % kOfInstruction == 0);
    constexpr int kInstructions = 4 / kOfInstruction;  // Served by one load.
    static_assert(Target::kCount % kInstructions == 0);
    constexpr int kLineBytes = kInstructions * Target::kExtent * kLines.stride();
    const uint32_t address =
        shared_ + offset + ((chunk_ + step * (Target::kStepBytes / 16)) ^ swizzle_) * 16;
#pragma unroll
    for (int i = 0; i < Target::kCount / kInstructions; ++i) {
      uint32_t words[4];
      ptx::LoadMatrices(words, address + i * kLineBytes);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        target.words[i * kInstructions + w / kOfInstruction][w % kOfInstruction] = words[w];
      }
    }
  }

  __device__ void LoadF64(int offset, int step, Target& target) const {
#pragma unroll
    for (int i = 0; i < Target::kCount; ++i) {
#pragma unroll
      for (int e = 0; e < Target::kElements; ++e) {
        const mma::Position at = PositionInFragment<kIndex, kOperand>(lane_, e);
        const int across = first_ + i * Target::kExtent + (Target::kIsA ? at.row : at.column);
        const int along = step * kInstruction.k + (Target::kIsA ? at.column : at.row);
        target.words[i][e] = __longlong_as_double(static_cast<long long>(ptx::LoadShared64(
            shared_ + offset + OffsetInTile<kIndex, kOperand>(across, 8 * along))));
      }
    }
  }

  __device__ void LoadWmma(int offset, int step, Target& target) const {
    constexpr int kStride = kLines.stride() * 8 / Target::kBits;
    constexpr bool kIsAlongK = kLines.axis == LineAxis::kK;
#pragma unroll
    for (int i = 0; i < Target::kCount; ++i) {
      const int across = first_ + i * Target::kExtent;
      const int along = step * kInstruction.k;
      const int line = kIsAlongK ? across : along;
      const int byte = (kIsAlongK ? along : across) * Target::kBits / 8;
      ptx::WmmaLoad<WmmaLoadMnemonic<kIndex, Target::kIsA>>(
          target.words[i], shared_ + offset + line * kLines.stride() + byte, kStride);
    }
  }

  // A lane's four elements of f16 lie beside each other, along k or across it.
  __device__ void LoadQuad(int offset, int step, Target& target) const {
    const mma::Position at = PositionInFragment<kIndex, kOperand>(lane_, 0);
#pragma unroll
    for (int i = 0; i < Target::kCount; ++i) {
      const int row_of_product = Target::kIsA ? at.row + kInstruction.m * at.product : at.column;
      const int across = first_ + i * Target::kExtent + row_of_product;
      const int along = step * kInstruction.k + (Target::kIsA ? at.column : at.row);
      const bool is_along_k = kLines.axis == LineAxis::kK;
      const uint64_t words =
          ptx::LoadShared64(shared_ + offset +
                            OffsetInTile<kIndex, kOperand>(is_along_k ? across : along,
                                                           2 * (is_along_k ? along : across)));
      target.words[i][0] = static_cast<uint32_t>(words);
      target.words[i][1] = static_cast<uint32_t>(words >> 32);
    }
  }

  uint32_t shared_;
  int first_ = 0;
  int lane_ = 0;
  int chunk_ = 0;
  int swizzle_ = 0;
};

// A warp's accumulators.
template <size_t kIndex>
struct WarpSums {
  static constexpr CudaRow kOf = kRow<kIndex>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kDown = InstructionsDown(kOf);
  static constexpr int kAcross = InstructionsAcross(kOf);
  static constexpr ElementType kType = kInstruction.d;
  static constexpr int kElements = mma::ElementsPerLane(kInstruction, mma::Operand::kD);
  static constexpr int kWords = kType == ElementType::kF16 ? kElements / 2 : kElements;
  using Word = std::conditional_t<kType == ElementType::kF64, double,
                                  std::conditional_t<kType == ElementType::kF32, float, uint32_t>>;
  // As the epilogue takes them.
  using Sum = std::conditional_t<kType == ElementType::kF64, double,
                                 std::conditional_t<kType == ElementType::kS32, int32_t, float>>;

  Word words[kDown][kAcross][kWords];

  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[i][j][w] = 0;
      }
    }
  }

  __device__ Sum At(int i, int j, int element) const {
    if constexpr (kType == ElementType::kF16) {
      const uint32_t pair = words[i][j][element / 2];
      return ptx::F32FromF16(static_cast<uint16_t>(element % 2 == 0 ? pair : pair >> 16));
    } else {
      return static_cast<Sum>(words[i][j][element]);
    }
  }

  // One step; `part` says which columns b is of.
  __device__ void Add(const Fragments<kIndex, mma::Operand::kA>& a,
                      const Fragments<kIndex, mma::Operand::kB>& b, int part,
                      const uint32_t* metadata) {
    constexpr int kOfPart = Fragments<kIndex, mma::Operand::kB>::kCount;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kOfPart; ++j) {
        AddOne(words[i][part * kOfPart + j], a.words[i], b.words[j], metadata[i]);
      }
    }
  }

 private:
  // From where D has the sums to where C wants them.
  __device__ static void Exchange(const Word (&d)[kWords], float (&c)[kElements]) {
    constexpr bool kChanges = SumsChangeLanes(kRow<kIndex>);
    if constexpr (!kChanges) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) c[e] = d[e];
    } else {
      extern __shared__ __align__(1024) std::byte shared_memory[];
      constexpr CudaRow kTheRow = kRow<kIndex>;
      const int thread = ptx::ThreadInBlock();
      float* const matrix =
          reinterpret_cast<float*>(shared_memory + kTheRow.stages * StageBytes(kTheRow)) +
          thread / 32 * ExchangeElements(kTheRow);
      const auto place = [](const mma::Position& at) {
        return (at.product * kInstruction.m + at.row) * kInstruction.n + at.column;
      };
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        matrix[place(PositionInFragment<kIndex, mma::Operand::kD>(thread % 32, e))] = d[e];
      }
      __syncwarp();
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        c[e] = matrix[place(PositionInFragment<kIndex, mma::Operand::kC>(thread % 32, e))];
      }
      __syncwarp();
    }
  }

  template <typename A, typename B>
  __device__ static void AddOne(Word (&c)[kWords], const A& a, const B& b, uint32_t metadata) {
    using Source = RowMnemonic<kIndex>;
    if constexpr (kInstruction.is_sparse()) {
      ptx::MmaSparse<Source>(c, a, b, metadata);
    } else if constexpr (kInstruction.c == kInstruction.d) {
      ptx::Mma<Source>(c, a, b);
    } else if constexpr (kInstruction.c == ElementType::kF16) {
      float singles[kElements];
      Exchange(c, singles);
      uint32_t pairs[kElements / 2];
#pragma unroll
      for (int w = 0; w < kElements / 2; ++w) {
        pairs[w] = ptx::PackF16(singles[2 * w], singles[2 * w + 1]);
      }
      ptx::Mma<Source>(c, a, b, pairs);
    } else {
      float singles[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        singles[e] = ptx::F32FromF16(static_cast<uint16_t>(c[e / 2] >> e % 2 * 16));
      }
      ptx::Mma<Source>(c, a, b, singles);
    }
  }
};

// A warp's metadata of one tile of k, from the workspace. The words of a step are replaced by those
// of the next tile's as soon as they were used. Nothing where A is dense.
template <size_t kIndex>
class MetadataWords {
 public:
  // `source` points at this lane's word of the warp's first rows and the first step; `steps` are
  // those of all of k, in whole tiles.
  __device__ MetadataWords(const uint32_t* source, int steps)
      : source_(source), bytes_of_rows_(steps * 128) {
    if constexpr (kIsSparse) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) Load(s);
      source_ += kSteps * 32;
    }
  }

  __device__ const uint32_t* OfStep(int step) const { return words_[kIsSparse ? step : 0]; }

  // Loads the step's words of the next tile, where there is one.
  __device__ void Replace(int step, bool has_next_tile) {
    if constexpr (kIsSparse) {
      if (has_next_tile) Load(step);
      if (step == kSteps - 1) source_ += kSteps * 32;
    }
  }

 private:
  static constexpr CudaRow kOf = kRow<kIndex>;
  static constexpr bool kIsSparse = kOf.instruction.is_sparse();
  static constexpr int kDown = kIsSparse ? InstructionsDown(kOf) : 1;
  static constexpr int kSteps = kIsSparse ? StepsOfTile(kOf) : 1;

  __device__ void Load(int step) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      words_[step][i] = __ldg(ptx::Advance(source_ + step * 32, i, bytes_of_rows_));
    }
  }

  const uint32_t* source_;
  int bytes_of_rows_;
  uint32_t words_[kSteps][kDown];
};

// What a thread works on. Neighbours in the grid share lines of A and B, which then stay in L2.
struct Place {
  int64_t row;  // Of the block's tile in D.
  int64_t column;
  int64_t batch;
  int thread;
  int lane;
  int warp_row;  // Of the warp's part in the tile.
  int warp_column;
};

template <size_t kIndex>
__device__ Place FindPlace(const MmaParameters& parameters) {
  constexpr CudaRow kOf = kRow<kIndex>;
  constexpr int kGroup = 8;  // Tiles above each other that follow each other.
  const int block = ptx::BlockInGrid();
  const int first = block / (kGroup * parameters.tiles_n) * kGroup;
  const int rows = min(parameters.tiles_m - first, kGroup);
  const int inside = block % (kGroup * parameters.tiles_n);
  const int thread = ptx::ThreadInBlock();
  const int warp = thread / 32;
  return {.row = int64_t{first + inside % rows} * kOf.tile.m,
          .column = int64_t{inside / rows} * kOf.tile.n,
          .batch = blockIdx.z + parameters.first_batch,
          .thread = thread,
          .lane = thread % 32,
          .warp_row = warp % kOf.warps_m * (kOf.tile.m / kOf.warps_m),
          .warp_column = warp / kOf.warps_m * (kOf.tile.n / kOf.warps_n)};
}

template <size_t kIndex>
class MmaBlock {
 public:
  __device__ MmaBlock(const MmaParameters& parameters, std::byte* shared)
      : parameters_(parameters), shared_(shared) {}

  __device__ void Run() {
    const uint32_t shared = ptx::SharedAddress(shared_);
    const Place place = FindPlace<kIndex>(parameters_);
    const Loaders loaders = {{shared, place.warp_row, place.lane},
                             {shared + kABytes, place.warp_column, place.lane}};
    MetadataWords<kIndex> metadata(MetadataSource(place), parameters_.metadata_steps);
    sums_.Clear();
    if constexpr (LoadsAhead(kOf) && ptx::kHasTileCopies) {
      RunAhead(place, loaders, metadata);
    } else {
      RunPlainly(place, loaders, metadata);
    }
    Finish();
  }

 private:
  static constexpr CudaRow kOf = kRow<kIndex>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kStageBytes = StageBytes(kOf);
  static constexpr int kSteps = StepsOfTile(kOf);
  static constexpr int kParts = PartsOfB(kOf);
  static constexpr int kTileStride = AccumulatorStride(kOf);

  struct Copies {
    TileCopy<kIndex, mma::Operand::kA> a;
    TileCopy<kIndex, mma::Operand::kB> b;

    __device__ void Copy(int offset) const {
      a.Copy(offset);
      b.Copy(offset);
    }
    __device__ void Advance() {
      a.Advance();
      b.Advance();
    }
  };
  struct Loaders {
    FragmentLoader<kIndex, mma::Operand::kA> a;
    FragmentLoader<kIndex, mma::Operand::kB> b;
  };

  // Where in the stages a tile of k is. Each round through them turns the parity of the barriers.
  struct Turn {
    int stage;
    int parity;

    __device__ Turn Next() const {
      return stage + 1 == kOf.stages ? Turn{0, parity ^ 1} : Turn{stage + 1, parity};
    }
  };

  // What the tiles of RunAhead share. `full` says that a stage's tiles are there, `empty` that
  // every warp has read them; so warps need not keep in step.
  struct Ahead {
    const Loaders& loaders;
    MetadataWords<kIndex>& metadata;
    uint32_t stages;  // Shared memory.
    int row;
    int column;
    int a_matrix;
    int b_matrix;
    bool copies;  // This thread tells the copy engine what to do.
    Fragments<kIndex, mma::Operand::kA> a[2];
    Fragments<kIndex, mma::Operand::kB> b[2];

    __device__ uint32_t full(int stage) const {
      return stages + kOf.stages * kStageBytes + stage * kBarrierBytes;
    }
    __device__ uint32_t empty(int stage) const { return full(stage) + kBarrierBytes / 2; }
  };

  // The copy engine brings tiles, as many ahead as there are other stages; fragments are loaded one
  // part of a step ahead of the instructions that take them.
  __device__ void RunAhead(const Place& place, const Loaders& loaders,
                           MetadataWords<kIndex>& metadata) {
    Ahead ahead = {.loaders = loaders,
                   .metadata = metadata,
                   .stages = ptx::SharedAddress(shared_),
                   .row = static_cast<int>(place.row),
                   .column = static_cast<int>(place.column),
                   .a_matrix = MatrixOf(parameters_.a, place.batch),
                   .b_matrix = MatrixOf(parameters_.b, place.batch),
                   .copies = place.thread == 0};
    if (ahead.copies) {
      for (int stage = 0; stage < kOf.stages; ++stage) {
        ptx::InitBarrier(ahead.full(stage), 1);
        ptx::InitBarrier(ahead.empty(stage), kOf.threads() / 32);
      }
      ptx::ShowBarriers();
      for (int tile = 0; tile < min(kOf.stages - 1, parameters_.tiles_k); ++tile) {
        CopyTile(ahead, tile, tile);
      }
    }
    __syncthreads();
    ptx::WaitForPhase(ahead.full(0), 0);
    loaders.a.Load(0, 0, 0, ahead.a[0]);
    loaders.b.Load(0, 0, 0, ahead.b[0]);
    Turn read = {0, 0};
    Turn write = {kOf.stages - 1, 1};  // Every stage is empty at first.
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
      RunTileAhead(std::make_integer_sequence<int, kSteps * kParts>(), tile, read, write, ahead);
      read = read.Next();
      write = write.Next();
    }
  }

  __device__ static int MatrixOf(const OperandLines& operand, int64_t batch) {
    return operand.batch_stride_bytes == 0 ? 0 : static_cast<int>(batch);
  }

  __device__ void CopyTile(const Ahead& ahead, int tile, int stage) const {
    constexpr int kALine = TileLinesOf(kOf, mma::Operand::kA).line_bytes;
    constexpr int kBLine = TileLinesOf(kOf, mma::Operand::kB).line_bytes;
    static_assert(kALine <= 128 && kBLine <= 128, "the copy engine's swizzle has 128 bytes");
    static_assert(kABytes % 1024 == 0 && kStageBytes % 1024 == 0, "and counts from 1024");
    const uint32_t shared = ahead.stages + stage * kStageBytes;
    ptx::ArriveAndAnnounce(ahead.full(stage), kStageBytes);
    ptx::CopyTileAsync(shared, &parameters_.a_map, tile * kALine, ahead.row, ahead.a_matrix,
                       ahead.full(stage));
    ptx::CopyTileAsync(shared + kABytes, &parameters_.b_map, tile * kBLine, ahead.column,
                       ahead.b_matrix, ahead.full(stage));
  }

  template <int... kAt>
  __device__ void RunTileAhead(std::integer_sequence<int, kAt...>, int tile, Turn read, Turn write,
                               Ahead& ahead) {
    (RunPartAhead<kAt>(tile, read, write, ahead), ...);
  }

  // Part kAt of the tile's steps, kParts to a step.
  template <int kAt>
  __device__ void RunPartAhead(int tile, Turn read, Turn write, Ahead& ahead) {
    constexpr int kCount = kSteps * kParts;
    static_assert(kSteps % 2 == 0, "the first step of every tile is in the same registers");
    constexpr int kStep = kAt / kParts;
    constexpr int kPart = kAt % kParts;
    constexpr int kNext = (kAt + 1) % kCount;
    constexpr bool kIsLast = kAt == kCount - 1;
    const bool has_next = tile + 1 < parameters_.tiles_k;
    if constexpr (kIsLast) {
      if (has_next) ptx::WaitForPhase(ahead.full(read.Next().stage), read.Next().parity);
    }
    const int offset = (kIsLast ? read.Next() : read).stage * kStageBytes;
    if constexpr (kPart == kParts - 1) {
      ahead.loaders.a.Load(offset, kNext / kParts, 0, ahead.a[(kStep + 1) % 2]);
    }
    ahead.loaders.b.Load(offset, kNext / kParts, kNext % kParts, ahead.b[(kAt + 1) % 2]);
    sums_.Add(ahead.a[kStep % 2], ahead.b[kAt % 2], kPart, ahead.metadata.OfStep(kStep));
    if constexpr (kAt == kCount / 2 - 1) {
      // Late enough for the other warps to be done with the tile before, whose stage it takes.
      if (ahead.copies && tile + kOf.stages - 1 < parameters_.tiles_k) {
        ptx::WaitForPhase(ahead.empty(write.stage), write.parity);
        CopyTile(ahead, tile + kOf.stages - 1, write.stage);
      }
    }
    if constexpr (kPart == kParts - 1) ahead.metadata.Replace(kStep, has_next);
    if constexpr (kIsLast) {
      // The instructions above have taken the last fragments of the stage.
      if (ptx::ThreadInBlock() % 32 == 0) ptx::Arrive(ahead.empty(read.stage));
    }
  }

  __device__ static int Next(int stage) { return stage + 1 == kOf.stages ? 0 : stage + 1; }
  __device__ static int Previous(int stage) { return stage == 0 ? kOf.stages - 1 : stage - 1; }

  // Threads copy the tiles, and fragments are loaded just before the instructions that take them.
  __device__ void RunPlainly(const Place& place, const Loaders& loaders,
                             MetadataWords<kIndex>& metadata) {
    const uint32_t shared = ptx::SharedAddress(shared_);
    Copies copies = {{parameters_.a, place.batch, place.row, shared, place.thread},
                     {parameters_.b, place.batch, place.column, shared + kABytes, place.thread}};
    for (int stage = 0; stage < kOf.stages - 1; ++stage) {
      if (stage < parameters_.tiles_k) copies.Copy(stage * kStageBytes);
      copies.Advance();
      ptx::CommitCopies();
    }
    int stage = 0;
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
      ptx::WaitForCopies<kOf.stages - 2>();
      __syncthreads();
      if (tile + kOf.stages - 1 < parameters_.tiles_k) {
        copies.Copy(Previous(stage) * kStageBytes);
      }
      copies.Advance();
      ptx::CommitCopies();
      const bool is_whole = (tile + 1) * kSteps <= parameters_.steps;
      if (!CountsEveryStep(kOf) || is_whole) {
#pragma unroll(kUnroll)
        for (int step = 0; step < kSteps; ++step) {
          RunStep(step, stage, loaders, metadata);
          metadata.Replace(step, tile + 1 < parameters_.tiles_k);
        }
      } else {
#pragma unroll 1
        for (int step = 0; tile * kSteps + step < parameters_.steps; ++step) {
          RunStep(step, stage, loaders, metadata);
        }
      }
      stage = Next(stage);
    }
    ptx::WaitForCopies<0>();
  }

  __device__ void RunStep(int step, int stage, const Loaders& loaders,
                          const MetadataWords<kIndex>& metadata) {
    Fragments<kIndex, mma::Operand::kA> a;
    loaders.a.Load(stage * kStageBytes, step, 0, a);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Fragments<kIndex, mma::Operand::kB> b;
      loaders.b.Load(stage * kStageBytes, step, part, b);
      sums_.Add(a, b, part, metadata.OfStep(step));
    }
  }

  // This lane's metadata for the warp's first rows.
  __device__ const uint32_t* MetadataSource(const Place& place) const {
    if constexpr (!kInstruction.is_sparse()) return nullptr;
    const int64_t rows = (place.row + place.warp_row) / kInstruction.m;
    return parameters_.metadata + place.batch * parameters_.metadata_batch_stride_words +
           rows * parameters_.metadata_steps * 32 + place.lane;
  }

  // Writes the accumulators to their places in the tile.
  __device__ void Stage(const Place& place, typename WarpSums<kIndex>::Sum* tile) const {
#pragma unroll
    for (int i = 0; i < WarpSums<kIndex>::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < WarpSums<kIndex>::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < WarpSums<kIndex>::kElements; ++e) {
          const mma::Position at = PositionInFragment<kIndex, mma::Operand::kD>(place.lane, e);
          const int row =
              place.warp_row + i * kOf.instruction_rows() + kInstruction.m * at.product + at.row;
          const int column = place.warp_column + j * kInstruction.n + at.column;
          tile[row * kTileStride + column] = sums_.At(i, j, e);
        }
      }
    }
  }

  // Through shared memory, so that the code of the epilogue is there once and not for each
  // register.
  __device__ void Finish() {
    using Sum = typename WarpSums<kIndex>::Sum;
    constexpr int kStride = kTileStride;
    const EpilogueParameters& epilogue = parameters_.epilogue;
    const Place place = FindPlace<kIndex>(parameters_);
    Sum* const tile = reinterpret_cast<Sum*>(shared_);
    __syncthreads();  // Every warp has read its fragments.
    Stage(place, tile);
    __syncthreads();
    if (!CanStoreDirectly(epilogue)) {
      FinishTile(epilogue, place.batch, place.row, place.column, tile, kOf.tile.m, kOf.tile.n,
                 kStride, place.thread, kOf.threads());
      return;
    }
    const bool is_row_major = epilogue.d.order == Order::kRowMajor;
    constexpr int kPairs = kOf.tile.n / 2;
#pragma unroll 1
    for (int i = place.thread; i < kOf.tile.m * kPairs; i += kOf.threads()) {
      const int row = is_row_major ? i / kPairs : i % kOf.tile.m;
      const int column = 2 * (is_row_major ? i % kPairs : i / kOf.tile.m);
      const Sum* const pair = tile + row * kStride + column;
      StoreDirectly(epilogue, place.batch, place.row + row, place.column + column, pair[0],
                    pair[1]);
    }
  }

  // What ptxas expands is long enough; but metadata is in registers by its step.
  static constexpr int kUnroll =
      kInstruction.is_sparse() ||
              mma::SupportOn(kInstruction, mma::Chip::kSm90) == mma::Support::kNative
          ? kSteps
          : 1;

  const MmaParameters& parameters_;
  std::byte* const shared_;
  WarpSums<kIndex> sums_;
};

template <size_t kIndex>
__global__ void __launch_bounds__(kRow<kIndex>.threads(), BlocksPerMultiprocessor(kRow<kIndex>))
    MmaKernel(const __grid_constant__ MmaParameters parameters) {
  extern __shared__ __align__(1024) std::byte shared_memory[];
  MmaBlock<kIndex>(parameters, shared_memory).Run();
}

// For functions.h.
template <size_t kIndex>
struct MmaFunction {
  static const void* Get() { return reinterpret_cast<const void*>(&MmaKernel<kIndex>); }
};

}  // namespace gemmd
