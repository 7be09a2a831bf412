// SPDX-License-Identifier: Apache-2.0
//
// The packing of operands, shared by threads; pack.cu has the kernels. Functions are constexpr for
// nvcc; see element_codes.h.
//
// Lines are written in chunks of 16 bytes, and read in such chunks as far as they are aligned.
// Elements may take more bits than in their source: a container holds an element's bits, shifted up
// by `shift`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/row.h"
#include "kernels/matrix/element_codes.h"

namespace gemmd {

// The work on all matrices of one operand. The bytes after a target line's elements, up to its
// stride, become zero.
struct PackJob {
  const std::byte* source = nullptr;
  const std::byte* source_end = nullptr;  // Nothing is read from here on.
  std::byte* target = nullptr;
  int64_t source_line_stride = 0;  // In bytes, like all strides.
  int64_t source_batch_stride = 0;
  int64_t target_line_stride = 0;  // A multiple of 16.
  int64_t target_batch_stride = 0;
  int64_t lines = 0;   // Lines of one matrix of the target.
  int64_t length = 0;  // Elements of each line.
  int64_t batch = 0;
};

struct alignas(16) Chunk {
  uint64_t low = 0;
  uint64_t high = 0;
};
inline constexpr int kChunkBytes = sizeof(Chunk);
static_assert(kChunkBytes == kLineAlignment);

constexpr int64_t CeilOf(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

template <typename Word>
constexpr Word LoadAligned(const std::byte* place) {
  return *reinterpret_cast<const Word*>(place);
}

constexpr uint64_t Join(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

// Loads fewer bytes than a chunk has, one by one, as at the end of a line.
template <typename Byte>
constexpr Chunk LoadBytes(const Byte* place, int bytes) {
  Chunk chunk;
  for (int i = 0; i < bytes; ++i) {
    const uint64_t byte = std::to_integer<uint64_t>(place[i]);
    (i < 8 ? chunk.low : chunk.high) |= byte << i % 8 * 8;
  }
  return chunk;
}

// Loads a whole chunk that does not start on a word from the five words that it touches.
template <typename Byte>
constexpr Chunk LoadShifted(const Byte* place, const std::byte* end) {
  const auto misalignment = static_cast<int>(reinterpret_cast<uintptr_t>(place) % 4);
  const Byte* first = place - misalignment;
  if (end - first < 20) return LoadBytes(place, kChunkBytes);
  const int shift = 8 * misalignment;
  uint32_t words[4] = {};
  uint32_t word = LoadAligned<uint32_t>(first);
  for (int i = 0; i < 4; ++i) {
    const uint32_t next = LoadAligned<uint32_t>(first + 4 * (i + 1));
    words[i] = static_cast<uint32_t>(Join(word, next) >> shift);
    word = next;
  }
  return {Join(words[0], words[1]), Join(words[2], words[3])};
}

// Loads `bytes` bytes from `place`, but not more than a chunk, and zeros after them.
template <typename Byte>
constexpr Chunk LoadChunk(const Byte* place, int64_t bytes, const std::byte* end) {
  if (bytes <= 0) return {};
  if (bytes < kChunkBytes) return LoadBytes(place, static_cast<int>(bytes));
  const auto address = reinterpret_cast<uintptr_t>(place);
  if (address % 16 == 0) return LoadAligned<Chunk>(place);
  if (address % 8 == 0) return {LoadAligned<uint64_t>(place), LoadAligned<uint64_t>(place + 8)};
  if (address % 4 != 0) return LoadShifted(place, end);
  return {Join(LoadAligned<uint32_t>(place), LoadAligned<uint32_t>(place + 4)),
          Join(LoadAligned<uint32_t>(place + 8), LoadAligned<uint32_t>(place + 12))};
}

// Clears all but the low `bits` bits of a chunk.
constexpr Chunk KeepLow(Chunk chunk, int64_t bits) {
  if (bits >= 128) return chunk;
  if (bits <= 0) return {};
  if (bits > 64) return {chunk.low, chunk.high & ~uint64_t{0} >> (128 - bits)};
  return {chunk.low & ~uint64_t{0} >> (64 - bits), 0};
}

template <typename Byte>
constexpr void StoreChunk(Byte* place, const Chunk& chunk) {
  *reinterpret_cast<Chunk*>(place) = chunk;
}

// How elements that have kBits bits in the source are packed into containers of kContainer bits.
template <int kBits, int kContainer>
struct PackForm {
  static_assert(kContainer == kBits || (kContainer == 8 && kBits < 8));
  static constexpr bool kWidens = kContainer != kBits;
  // Elements of a chunk of the target.
  static constexpr int kElements = 8 * kChunkBytes / kContainer;
  // A transposed tile is square. In shared memory each element takes a word of kWordBytes: elements
  // of less than a byte take a byte.
  static constexpr int kTile = kContainer >= 16 ? 64 : 128;
  static constexpr int kWordBytes = kContainer >= 8 ? kContainer / 8 : 1;
  using Word = WordOfBytes<kWordBytes>;
  // A line has one 32-bit word, or one element, more than the tile, so that lines begin in
  // different banks.
  static constexpr int kStride = kTile + (kWordBytes < 4 ? 4 / kWordBytes : 1);
  // A thread reads this many elements of a source line at a time, in up to 16 bytes.
  static constexpr int kReads = kBits == 6 ? 16 : 8 * kChunkBytes / kBits;
};

// Widens kElements neighbouring elements of the source to a chunk of containers. The first element
// begins at `place`; the line has `left` elements from there on.
template <typename Form, int kBits>
constexpr Chunk WidenedChunk(const std::byte* place, int64_t left, int shift,
                             const std::byte* end) {
  constexpr int64_t kSourceBits = int64_t{Form::kElements} * kBits;
  const int64_t bits = left < Form::kElements ? left * kBits : kSourceBits;
  const Chunk source = KeepLow(LoadChunk(place, (bits + 7) / 8, end), bits);
  Chunk chunk;
  for (int e = 0; e < Form::kElements; ++e) {
    const int first = e * kBits;
    uint64_t code = first < 64 ? source.low >> first : source.high >> first % 64;
    if (first < 64 && first + kBits > 64) code |= source.high << (64 - first);
    code = (code & ((uint64_t{1} << kBits) - 1)) << shift;
    (e < 8 ? chunk.low : chunk.high) |= code << e % 8 * 8;
  }
  return chunk;
}

// Chunk `index` of a target line whose elements lie along a line of the source.
template <int kBits, int kContainer>
constexpr Chunk AlongChunk(const PackJob& job, const std::byte* line, int64_t index, int shift) {
  using Form = PackForm<kBits, kContainer>;
  const int64_t first = index * Form::kElements;
  const int64_t left = job.length - first;
  const std::byte* place = line + first / 8 * kBits + first % 8 * kBits / 8;
  if constexpr (Form::kWidens) {
    return WidenedChunk<Form, kBits>(place, left, shift, job.source_end);
  } else {
    const int64_t bits = left < Form::kElements ? left * kBits : 8 * kChunkBytes;
    return KeepLow(LoadChunk(place, (bits + 7) / 8, job.source_end), bits);
  }
}

// A tile of the target that begins at line `line` and element `element`, if source lines run across
// the target's.
struct PackTile {
  int64_t matrix = 0;
  int64_t line = 0;
  int64_t element = 0;
};

// Stores the elements of one read as words of shared memory, 32 bits at a time.
template <typename Form, int kBits>
constexpr void StageElements(const Chunk& source, int shift, uint32_t* target) {
  if constexpr (kBits >= 8) {
    target[0] = static_cast<uint32_t>(source.low);
    target[1] = static_cast<uint32_t>(source.low >> 32);
    target[2] = static_cast<uint32_t>(source.high);
    target[3] = static_cast<uint32_t>(source.high >> 32);
  } else {
    constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
    uint64_t low = source.low;
    uint64_t high = source.high;
    for (int i = 0; i < Form::kReads / 4; ++i) {
      uint32_t word = 0;
      for (int e = 0; e < 4; ++e) {
        word |= static_cast<uint32_t>(low & kMask) << (8 * e + shift);
        low = low >> kBits | high << (64 - kBits);
        high >>= kBits;
      }
      target[i] = word;
    }
  }
}

// The first half of transposing a tile: thread `thread` of `threads` reads lines of the source,
// each of which holds one element of every target line, into `staged` (kTile lines of kStride
// words). Words beyond the matrix become zero.
template <int kBits, int kContainer>
constexpr void StageTile(const PackJob& job, const PackTile& tile, int shift, int thread,
                         int threads, typename PackForm<kBits, kContainer>::Word* staged) {
  using Form = PackForm<kBits, kContainer>;
  constexpr int kReadsOfLine = Form::kTile / Form::kReads;
  constexpr int64_t kReadBits = int64_t{Form::kReads} * kBits;
  const std::byte* matrix = job.source + tile.matrix * job.source_batch_stride;
  for (int i = thread; i < Form::kTile * kReadsOfLine; i += threads) {
    const int source_line = i / kReadsOfLine;
    const int first = i % kReadsOfLine * Form::kReads;
    const int64_t left = job.lines - tile.line - first;
    Chunk chunk;
    if (tile.element + source_line < job.length && left > 0) {
      const int64_t bits = left < Form::kReads ? left * kBits : kReadBits;
      const std::byte* place = matrix + (tile.element + source_line) * job.source_line_stride +
                               (tile.line + first) / 8 * kBits +
                               (tile.line + first) % 8 * kBits / 8;
      chunk = KeepLow(LoadChunk(place, (bits + 7) / 8, job.source_end), bits);
    }
    typename Form::Word* target = staged + source_line * Form::kStride + first;
    StageElements<Form, kBits>(chunk, shift, reinterpret_cast<uint32_t*>(target));
  }
}

// Gathers chunk `chunk` of line `line` of a staged tile.
template <int kBits, int kContainer>
constexpr Chunk AcrossChunk(const typename PackForm<kBits, kContainer>::Word* staged, int line,
                            int chunk) {
  using Form = PackForm<kBits, kContainer>;
  constexpr int kElementsOfHalf = Form::kElements / 2;
  const typename Form::Word* first = staged + chunk * Form::kElements * Form::kStride + line;
  Chunk result;
  for (int e = 0; e < kElementsOfHalf; ++e) {
    result.low |= static_cast<uint64_t>(first[e * Form::kStride]) << e * kContainer;
  }
  first += kElementsOfHalf * Form::kStride;
  for (int e = 0; e < kElementsOfHalf; ++e) {
    result.high |= static_cast<uint64_t>(first[e * Form::kStride]) << e * kContainer;
  }
  return result;
}

// The second half of transposing a tile, after a barrier: writes the target's lines.
template <int kBits, int kContainer>
constexpr void StoreTile(const PackJob& job, const PackTile& tile, int thread, int threads,
                         const typename PackForm<kBits, kContainer>::Word* staged) {
  using Form = PackForm<kBits, kContainer>;
  constexpr int kChunks = Form::kTile / Form::kElements;
  // Two neighbouring threads write the 32 bytes that memory moves together. Other threads take
  // other lines, so that they read different banks.
  constexpr int kTogether = kChunks < 2 ? 1 : 2;
  std::byte* matrix = job.target + tile.matrix * job.target_batch_stride;
  const int64_t first_byte = tile.element * kContainer / 8;
  for (int i = thread; i < Form::kTile * kChunks; i += threads) {
    const int line = i / kTogether % Form::kTile;
    const int chunk = i / (kTogether * Form::kTile) * kTogether + i % kTogether;
    const int64_t byte = first_byte + chunk * kChunkBytes;
    if (tile.line + line >= job.lines || byte >= job.target_line_stride) continue;
    StoreChunk(matrix + (tile.line + line) * job.target_line_stride + byte,
               AcrossChunk<kBits, kContainer>(staged, line, chunk));
  }
}

// Calls visit.template operator()<kBits, kContainer>() for elements of `bits` bits in containers of
// `container`.
template <typename Visit>
constexpr void WithPackForm(int bits, int container, const Visit& visit) {
  switch (bits) {
    case 64: return visit.template operator()<64, 64>();
    case 32: return visit.template operator()<32, 32>();
    case 16: return visit.template operator()<16, 16>();
    case 8: return visit.template operator()<8, 8>();
    case 6: return visit.template operator()<6, 8>();  // Elements of 6 bits only come in bytes.
    case 4:
      return container == 8 ? visit.template operator()<4, 8>() : visit.template operator()<4, 4>();
    default: return visit.template operator()<1, 1>();
  }
}

}  // namespace gemmd
