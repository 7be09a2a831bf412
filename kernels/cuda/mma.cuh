// SPDX-License-Identifier: Apache-2.0
//
// The kernel of every row of mma and mma.sp: a multistage product on tensor cores.
//
// Tiles of A and B come into shared memory by cp.async, several stages ahead, and from there into
// fragments by ldmatrix (f64 and m8n8k4: by loads of 8 bytes), one step of k ahead of the
// instructions. Each accumulator gets the instructions in ascending k, from zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/mma_parameters.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_table.h"
#include "kernels/mma/support.h"

namespace gemmd {

template <size_t kIndex>
inline constexpr CudaRow kRow = kCudaRows[kIndex];

// What the row's instruction is called; see ptx.cuh.
template <size_t kIndex>
struct RowMnemonic {
  static constexpr mma::PtxMnemonic kSource = mma::PtxOf(kRow<kIndex>.instruction);
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

// Copies one operand's tiles, step by step along k, each thread the same chunk of several lines.
template <size_t kIndex, mma::Operand kOperand>
class TileCopy {
 public:
  // `first` is the tile's first row of A or column of B.
  __device__ TileCopy(const OperandLines& operand, int64_t batch, int64_t first, uint32_t shared,
                      int thread) {
    const int line = thread / kChunks;
    const int chunk = thread % kChunks;
    stride_ = operand.line_stride_bytes;
    shared_ = shared + OffsetInTile<kIndex, kOperand>(line, 16 * chunk);
    source_ = operand.data + batch * operand.batch_stride_bytes + 16 * chunk;
    bytes_ = operand.line_bytes - 16 * chunk;
    lines_ = operand.lines - line;
    if constexpr (kLines.axis == LineAxis::kK) {
      source_ += (first + line) * stride_;
      lines_ -= first;
    } else {
      constexpr int kBits = mma::ContainerBits(kRow<kIndex>.instruction, kOperand);
      source_ += line * stride_ + first * kBits / 8;
      bytes_ -= first * kBits / 8;
    }
  }

  // Copies the next tile to the stage at `offset` of the shared memory.
  __device__ void Next(int offset) {
    const int bytes = static_cast<int>(bytes_ < 0 ? 0 : bytes_ < 16 ? bytes_ : 16);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (kIsWhole || thread_has_round(i)) {
        const bool is_inside = i * kLinesOfRound < lines_;
        ptx::CopyAsync(shared_ + offset + i * kLinesOfRound * kLines.line_bytes,
                       source_ + i * kLinesOfRound * stride_, is_inside ? bytes : 0);
      }
    }
    if constexpr (kLines.axis == LineAxis::kK) {
      source_ += kLines.line_bytes;
      bytes_ -= kLines.line_bytes;
    } else {
      source_ += kLines.lines * stride_;
      lines_ -= kLines.lines;
    }
  }

 private:
  static constexpr TileLines kLines = TileLinesOf(kRow<kIndex>, kOperand);
  static constexpr int kChunks = kLines.chunks();
  static constexpr int kThreads = kRow<kIndex>.threads();
  static constexpr int kLinesOfRound = kThreads / kChunks;
  static constexpr int kRounds = (kLines.lines + kLinesOfRound - 1) / kLinesOfRound;
  static constexpr bool kIsWhole = kLines.lines % kLinesOfRound == 0;
  static_assert(kThreads % kChunks == 0, "a thread copies the same chunk of every line");
  static_assert(kLines.SwizzleOf(kLinesOfRound) == 0 || kRounds == 1,
                "chunks trade places alike in every round");

  __device__ static bool thread_has_round(int i) {
    return static_cast<int>(threadIdx.x) / kChunks + i * kLinesOfRound < kLines.lines;
  }

  const std::byte* source_;
  int64_t stride_;
  int64_t bytes_;  // Of the line from this thread's chunk on.
  int64_t lines_;  // From this thread's first line on.
  uint32_t shared_;
};

// The fragments of one operand for one step along k of a warp.
template <size_t kIndex, mma::Operand kOperand>
struct Fragments {
  static constexpr mma::Instruction kInstruction = kRow<kIndex>.instruction;
  static constexpr TileLines kLines = TileLinesOf(kRow<kIndex>, kOperand);
  static constexpr bool kIsA = kOperand == mma::Operand::kA;
  static constexpr bool kIsF64 = kInstruction.a == ElementType::kF64;
  static constexpr bool kIsQuad = kInstruction.products() == 4;  // m8n8k4 with f16.
  static constexpr int kCount =
      kIsA ? InstructionsDown(kRow<kIndex>) : InstructionsAcross(kRow<kIndex>);
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
    if constexpr (Target::kIsF64 || Target::kIsQuad) {
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
      shared_ += line * kLines.line_bytes;
    }
  }

  __device__ void Load(int offset, int step, Target& target) const {
    if constexpr (Target::kIsF64) {
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
    constexpr int kLineBytes = kInstructions * Target::kExtent * kLines.line_bytes;
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
      return F32FromF16(static_cast<uint16_t>(element % 2 == 0 ? pair : pair >> 16));
    } else {
      return static_cast<Sum>(words[i][j][element]);
    }
  }

  __device__ void Add(const Fragments<kIndex, mma::Operand::kA>& a,
                      const Fragments<kIndex, mma::Operand::kB>& b, const uint32_t* metadata) {
    using Source = RowMnemonic<kIndex>;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        if constexpr (kInstruction.is_sparse()) {
          ptx::MmaSparse<Source>(words[i][j], a.words[i], b.words[j], metadata[i]);
        } else if constexpr (kInstruction.c != kInstruction.d) {
          uint32_t c[kElements / 2];
#pragma unroll
          for (int w = 0; w < kElements / 2; ++w) {
            c[w] = PackF16(words[i][j][2 * w], words[i][j][2 * w + 1]);
          }
          ptx::Mma<Source>(words[i][j], a.words[i], b.words[j], c);
        } else {
          ptx::Mma<Source>(words[i][j], a.words[i], b.words[j]);
        }
      }
    }
  }
};

// A warp's metadata, from the workspace, a tile of k ahead. Nothing where A is dense.
template <size_t kIndex>
class MetadataStream {
 public:
  // `source` points at this lane's word of the warp's first rows and the first step; `steps` are
  // those of all of k.
  __device__ MetadataStream(const uint32_t* source, int steps) : source_(source), steps_(steps) {
    Fetch(true);
    Advance();
  }

  // Loads the next tile's words, if there is one.
  __device__ void Fetch(bool is_there) {
    if constexpr (kIsSparse) {
      if (!is_there) return;
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          next_[s][i] = __ldg(source_ + (int64_t{i} * steps_ + s) * 32);
        }
      }
      source_ += kSteps * 32;
    }
  }

  __device__ void Advance() {
    if constexpr (kIsSparse) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < kDown; ++i) words_[s][i] = next_[s][i];
      }
    }
  }

  __device__ const uint32_t* OfStep(int step) const { return words_[kIsSparse ? step : 0]; }

 private:
  static constexpr CudaRow kOf = kRow<kIndex>;
  static constexpr bool kIsSparse = kOf.instruction.is_sparse();
  static constexpr int kDown = kIsSparse ? InstructionsDown(kOf) : 1;
  static constexpr int kSteps = kIsSparse ? StepsOfTile(kOf) : 1;

  const uint32_t* source_;
  int steps_;
  uint32_t words_[kSteps][kDown];
  uint32_t next_[kSteps][kDown];
};

// The tile of a block: neighbours in the grid share lines of A and B, which then stay in L2.
struct TilePlace {
  int row;
  int column;
};
__device__ inline TilePlace PlaceOf(int block, int tiles_m, int tiles_n) {
  constexpr int kGroup = 8;
  const int first = block / (kGroup * tiles_n) * kGroup;
  const int rows = min(tiles_m - first, kGroup);
  const int inside = block % (kGroup * tiles_n);
  return {first + inside % rows, inside / rows};
}

template <size_t kIndex>
class MmaBlock {
 public:
  __device__ explicit MmaBlock(const MmaParameters& parameters, std::byte* shared)
      : parameters_(parameters),
        place_(PlaceOf(static_cast<int>(blockIdx.x), parameters.tiles_m, parameters.tiles_n)),
        batch_(blockIdx.z + parameters.first_batch),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_row_(thread_ / 32 % kOf.warps_m * (kOf.tile.m / kOf.warps_m)),
        warp_column_(thread_ / 32 / kOf.warps_m * (kOf.tile.n / kOf.warps_n)),
        shared_(shared) {}

  __device__ void Run() {
    const uint32_t shared = ptx::SharedAddress(shared_);
    TileCopy<kIndex, mma::Operand::kA> a_copy(parameters_.a, batch_, first_row(), shared, thread_);
    TileCopy<kIndex, mma::Operand::kB> b_copy(parameters_.b, batch_, first_column(),
                                              shared + kABytes, thread_);
    const auto copy_next = [&](int tile, int stage) {
      if (tile < parameters_.tiles_k) {
        a_copy.Next(stage * kStageBytes);
        b_copy.Next(stage * kStageBytes);
      }
      ptx::CommitCopies();
    };
    for (int s = 0; s < kOf.stages - 1; ++s) copy_next(s, s);

    const FragmentLoader<kIndex, mma::Operand::kA> a_loader(shared, warp_row_, lane_);
    const FragmentLoader<kIndex, mma::Operand::kB> b_loader(shared + kABytes, warp_column_, lane_);
    sums_.Clear();
    if constexpr (LoadsAhead(kOf)) {
      RunAhead(copy_next, a_loader, b_loader);
    } else {
      RunPlainly(copy_next, a_loader, b_loader);
    }
    ptx::WaitForCopies<0>();
    Finish();
  }

 private:
  static constexpr CudaRow kOf = kRow<kIndex>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kStageBytes = StageBytes(kOf);
  static constexpr int kSteps = StepsOfTile(kOf);

  __device__ int64_t first_row() const { return int64_t{place_.row} * kOf.tile.m; }
  __device__ int64_t first_column() const { return int64_t{place_.column} * kOf.tile.n; }

  // Fragments are loaded one step ahead of the instructions that take them.
  template <typename CopyNext, typename ALoader, typename BLoader>
  __device__ void RunAhead(const CopyNext& copy_next, const ALoader& a_loader,
                           const BLoader& b_loader) {
    static_assert(kSteps % 2 == 0, "step 0 of every tile is in the same registers");
    Fragments<kIndex, mma::Operand::kA> a[2];
    Fragments<kIndex, mma::Operand::kB> b[2];
    MetadataStream<kIndex> metadata(MetadataSource(), parameters_.metadata_steps);
    ptx::WaitForCopies<kOf.stages - 2>();
    __syncthreads();
    a_loader.Load(0, 0, a[0]);
    b_loader.Load(0, 0, b[0]);
    int stage = 0;
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
      const int next_stage = stage + 1 == kOf.stages ? 0 : stage + 1;
      metadata.Fetch(tile + 1 < parameters_.tiles_k);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps - 1) {
          ptx::WaitForCopies<kOf.stages - 2>();
          __syncthreads();
        }
        const int offset = (step == kSteps - 1 ? next_stage : stage) * kStageBytes;
        a_loader.Load(offset, (step + 1) % kSteps, a[(step + 1) % 2]);
        b_loader.Load(offset, (step + 1) % kSteps, b[(step + 1) % 2]);
        if (step == 0) copy_next(tile + kOf.stages - 1, stage == 0 ? kOf.stages - 1 : stage - 1);
        sums_.Add(a[step % 2], b[step % 2], metadata.OfStep(step));
      }
      metadata.Advance();
      stage = next_stage;
    }
  }

  template <typename CopyNext, typename ALoader, typename BLoader>
  __device__ void RunPlainly(const CopyNext& copy_next, const ALoader& a_loader,
                             const BLoader& b_loader) {
    MetadataStream<kIndex> metadata(MetadataSource(), parameters_.metadata_steps);
    int stage = 0;
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
      ptx::WaitForCopies<kOf.stages - 2>();
      __syncthreads();
      copy_next(tile + kOf.stages - 1, stage == 0 ? kOf.stages - 1 : stage - 1);
      metadata.Fetch(tile + 1 < parameters_.tiles_k);
#pragma unroll(kUnroll)
      for (int step = 0; step < kSteps; ++step) {
        if (CountsEveryStep(kOf) && tile * kSteps + step >= parameters_.steps) break;
        Fragments<kIndex, mma::Operand::kA> a;
        Fragments<kIndex, mma::Operand::kB> b;
        a_loader.Load(stage * kStageBytes, step, a);
        b_loader.Load(stage * kStageBytes, step, b);
        sums_.Add(a, b, metadata.OfStep(step));
      }
      metadata.Advance();
      stage = stage + 1 == kOf.stages ? 0 : stage + 1;
    }
  }

  // This lane's metadata for the warp's first rows.
  __device__ const uint32_t* MetadataSource() const {
    if constexpr (!kInstruction.is_sparse()) return nullptr;
    const int64_t rows = (first_row() + warp_row_) / kInstruction.m;
    return parameters_.metadata + batch_ * parameters_.metadata_batch_stride_words +
           rows * parameters_.metadata_steps * 32 + lane_;
  }

  // Visits pairs of accumulators that lie beside each other in a row of the tile.
  template <typename Visit>
  __device__ void ForEachPair(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < WarpSums<kIndex>::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < WarpSums<kIndex>::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < WarpSums<kIndex>::kElements; e += 2) {
          const mma::Position at = PositionInFragment<kIndex, mma::Operand::kD>(lane_, e);
          visit(warp_row_ + i * kOf.instruction_rows() + kInstruction.m * at.product + at.row,
                warp_column_ + j * kInstruction.n + at.column, sums_.At(i, j, e),
                sums_.At(i, j, e + 1));
        }
      }
    }
  }

  __device__ void Finish() {
    using Sum = typename WarpSums<kIndex>::Sum;
    const EpilogueParameters& epilogue = parameters_.epilogue;
    if (CanStoreDirectly(epilogue)) {
      ForEachPair([&](int row, int column, Sum x0, Sum x1) {
        StoreDirectly(epilogue, batch_, first_row() + row, first_column() + column, x0, x1);
      });
      return;
    }
    __syncthreads();  // Every warp has read its fragments.
    Sum* const tile = reinterpret_cast<Sum*>(shared_);
    ForEachPair([&](int row, int column, Sum x0, Sum x1) {
      tile[row * kOf.tile.n + column] = x0;
      tile[row * kOf.tile.n + column + 1] = x1;
    });
    __syncthreads();
    FinishTile(epilogue, batch_, first_row(), first_column(), tile, kOf.tile.m, kOf.tile.n,
               kOf.tile.n, thread_, kOf.threads());
  }

  static constexpr int kUnroll =
      mma::SupportOn(kInstruction, mma::Chip::kSm90) == mma::Support::kNative ? kSteps : 1;

  const MmaParameters& parameters_;
  const TilePlace place_;
  const int64_t batch_;
  const int thread_;
  const int lane_;
  const int warp_row_;  // In the tile.
  const int warp_column_;
  std::byte* const shared_;
  WarpSums<kIndex> sums_;
};

template <size_t kIndex>
__global__ void __launch_bounds__(kRow<kIndex>.threads(), BlocksPerMultiprocessor(kRow<kIndex>))
    MmaKernel(const __grid_constant__ MmaParameters parameters) {
  extern __shared__ __align__(128) std::byte shared_memory[];
  MmaBlock<kIndex>(parameters, shared_memory).Run();
}

// For functions.h.
template <size_t kIndex>
struct MmaFunction {
  static const void* Get() { return reinterpret_cast<const void*>(&MmaKernel<kIndex>); }
};

}  // namespace gemmd
